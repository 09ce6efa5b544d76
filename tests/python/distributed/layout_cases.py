# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of bucket layouts: the same training with and without changes of the layout."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

import agspeed
from agspeed.distributed.layouts import Layout
from agspeed.distributed.reducers import WrapperLayouts, why_left_alone
from agspeed.frontend.session import session_of
from agspeed.reporting import summary

_KIB = 1 << 10
_CHANGES = [
    Layout(4 * _KIB, 16 * _KIB),
    Layout(32 * _KIB, 32 * _KIB),
    None,
    Layout(1, 1),
    Layout(1 << 30, 1 << 30),
    None,
]


class Net(nn.Module):
    def __init__(self, *, unused: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(48, 48, dtype=dtype) for _ in range(6))
        self.unused = nn.Linear(48, 48, dtype=dtype) if unused else None

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            batch = torch.tanh(layer(batch))
        return batch


def _trained(changes: bool, dtype: torch.dtype, keep: bool, no_sync: bool, hook: bool, options: Any) -> torch.Tensor:
    torch.manual_seed(5)
    model = DistributedDataParallel(Net(unused="find_unused_parameters" in options, dtype=dtype), **options)
    if hook:
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    layouts = WrapperLayouts(model)
    assert why_left_alone(model) is None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(18):
        if changes and step % 3 == 2:
            layouts.change(_CHANGES[step // 3])
        optimizer.zero_grad(set_to_none=not keep)
        for micro in range(2 if no_sync else 1):
            batch = torch.randn(8, 48, generator=generator).to(dtype)
            with model.no_sync() if no_sync and micro == 0 else contextlib.nullcontext():
                model(batch).float().square().mean().backward()
        optimizer.step()
    return torch.cat([value.detach().flatten() for value in model.parameters()])


def changed(
    dtype: str, keep: bool = False, no_sync: bool = False, hook: bool = False, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns weights without and with changes of the layout every third step."""
    kind = getattr(torch, dtype)
    without, with_changes = (_trained(changes, kind, keep, no_sync, hook, options) for changes in (False, True))
    return without, with_changes


def left_alone() -> dict[str, str | None]:
    """Returns the reason why a wrapper's layout is left alone, by the wrapper's feature."""
    found = {}
    for name in ("plain", "power_sgd", "unknown hook", "built-in hook", "optimizer in backward", "delayed", "DETAIL"):
        model = DistributedDataParallel(Net(unused=False, dtype=torch.float32))
        if name == "power_sgd":
            model.register_comm_hook(powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook)
        elif name == "unknown hook":
            model.register_comm_hook(
                None, lambda _, bucket: dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            )
        elif name == "built-in hook":
            model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        elif name == "optimizer in backward":
            _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 1e-2})
        elif name == "delayed":
            model._delay_all_reduce_params = [next(model.parameters())]
        elif name == "DETAIL":
            dist.set_debug_level(dist.DebugLevel.DETAIL)
        found[name] = why_left_alone(model)
    dist.set_debug_level(dist.DebugLevel.OFF)
    model = DistributedDataParallel(Net(unused=False, dtype=torch.float32))
    with Join([model]):
        found["join"] = why_left_alone(model)
    model = DistributedDataParallel(Net(unused=False, dtype=torch.float32))
    model.mixed_precision = _MixedPrecision(param_dtype=torch.bfloat16)
    found["mixed precision"] = why_left_alone(model)
    return found


def buckets_of_an_eager_model(cache: str) -> dict[str, Any]:
    """backends=["eager"]: only the layout is tuned, and nothing is captured."""
    torch.manual_seed(5)
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(5)))
    ddp = DistributedDataParallel(agspeed.optimize(model, mode="max", backends=["eager"], cache_dir=Path(cache)))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    count = 0
    while agspeed.status(ddp) == "tuning" and count < 3000:
        optimizer.zero_grad()
        ddp(torch.randn(8, 512)).square().mean().backward()
        optimizer.step()
        count += 1
    for _ in range(3):
        ddp(torch.randn(8, 512)).square().mean().backward()
    session = session_of(model)
    assert session is not None
    tuner = session.tuner_snapshot()
    return {
        "status": str(agspeed.status(ddp)).partition(":")[0],
        "arms": [arm["name"] for arm in tuner["arms"]],
        "chosen": tuner["decision"]["arm"],
        "caps": list(ddp.bucket_bytes_cap_list),
        "regions": len(session.regions),
        "sentence": summary.group(agspeed.report(ddp).to_dict()["group"]),
        "report": agspeed.report(ddp).to_dict()["decision"]["chosen"],
        "steps": count,
        "weights": torch.cat([value.detach().flatten() for value in ddp.parameters()]),
    }
