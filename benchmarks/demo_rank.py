# SPDX-License-Identifier: Apache-2.0
"""A rank of the demonstration's third act: trains a small transformer in DistributedDataParallel until it is killed.

python -m benchmarks.demo_rank {gloo,compile,agspeed} FOLDER

Rank 0 appends a line to FOLDER/log.jsonl for each step: {"seconds", "state", "reason"}. The state is "tuning" during
the first steps and until agspeed has decided, and "ready" from then on. Every tenth line of a ready rank also has
"group" and "chosen" from agspeed's report.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import agspeed

WIDTH, LAYERS, LENGTH, BATCH = 192, 3, 64, 4
_WARM_UP = 3


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.demo_rank", description=__doc__.splitlines()[0])
    parser.add_argument("way", choices=["gloo", "compile", "agspeed"])
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("agspeed" if given.way == "agspeed" else "gloo")
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.2, activation="gelu", batch_first=True)
    module = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    if given.way == "agspeed":
        module = agspeed.optimize(module, mode="max", backends=["native"])
    model = DistributedDataParallel(module)
    call = torch.compile(model) if given.way == "compile" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(BATCH, LENGTH, WIDTH)
    with (given.folder / "log.jsonl").open("a", buffering=1) as log:
        for step in range(1 << 30):
            begun = time.perf_counter()
            optimizer.zero_grad()
            call(batch).square().mean().backward()
            optimizer.step()
            if dist.get_rank() == 0:
                log.write(json.dumps(_log_entry(module, step, time.perf_counter() - begun)) + "\n")


def _log_entry(module: nn.Module, step: int, seconds: float) -> dict[str, Any]:
    status = agspeed.status(module)
    is_tuning = status == "tuning" or step < _WARM_UP
    report = agspeed.report(module).to_dict() if step % 10 == 0 and not is_tuning else None
    entry = {"seconds": seconds, "state": "tuning" if is_tuning else "ready", "reason": status.reason}
    return entry | ({"group": report["group"], "chosen": report["decision"]["chosen"]} if report else {})


if __name__ == "__main__":
    main()
