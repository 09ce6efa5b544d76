# SPDX-License-Identifier: Apache-2.0
"""A process whose torch lacks one name, as if it had been renamed. Trains as eager does and prints the messages.

    python training_with_a_part_gone.py NAME [plain|ddp|fully_shard] [KEYWORDS as JSON]

Prints one JSON object. This is not a test module.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
from typing import Any

import torch
import torch._dynamo

LOGGED: list[str] = []


class Listener(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        LOGGED.append(record.getMessage())


def take_away(name: str) -> None:
    """Removes the object with a dotted name: an attribute of a module, or of a class and its annotations."""
    words = name.split(".")
    for at in range(len(words) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(words[:at]))
            break
        except ImportError:
            continue
    for word in words[at:-1]:
        owner = getattr(owner, word)
    delattr(owner, words[-1])


def network() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))


def wrapped(model: torch.nn.Module, kind: str) -> torch.nn.Module:
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if kind == "fully_shard":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return model


def trained(model: torch.nn.Module) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        torch.manual_seed(step)
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [getattr(p, "to_local", lambda p=p: p)().detach().clone() for p in model.parameters()]


def strict_error(kind: str, keywords: dict[str, Any]) -> str:
    """Returns the error that training with strict=True raises, or ""."""
    import agspeed

    model = wrapped(network(), kind)
    try:
        agspeed.optimize(model, strict=True, **keywords)
        trained(model)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(name: str, kind: str, keywords: dict[str, Any]) -> dict[str, Any]:
    if kind != "plain":
        torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    take_away(name)
    logging.getLogger("agspeed").addHandler(Listener(logging.WARNING))
    import agspeed

    raised = strict_error(kind, keywords)
    LOGGED.clear()
    expected = trained(wrapped(network(), kind))
    found = []
    for _ in range(2):  # a message must not be repeated
        model = wrapped(network(), kind)
        agspeed.optimize(model, **keywords)
        found.append(trained(model))
    report = agspeed.report(model).to_dict()
    return {
        "strict": raised,
        "warnings": [line for line in LOGGED if "part `" in line],
        "status": str(agspeed.status(model)),
        "report": report["status"]["reason"],
        "report_warnings": report["warnings"],
        "plans": {plan["name"]: [plan["state"], plan["reason"] or ""] for plan in report["plans"]},
        "differs_by": max(float((a - b).abs().max()) for one in found for a, b in zip(one, expected, strict=True)),
    }


if __name__ == "__main__":
    kind = sys.argv[2] if len(sys.argv) > 2 else "plain"
    print(json.dumps(main(sys.argv[1], kind, json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})))
