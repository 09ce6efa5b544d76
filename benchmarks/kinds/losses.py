# SPDX-License-Identifier: Apache-2.0
"""The loss that a model reaches if its gradients are sent in fewer bytes, or its ranks take local steps.

Two ranks train over loopback on real data (`benchmarks/workloads/data.py`), with one core each. Every way starts from
the same weights and sees the same batches. The loss is the one of held-out data after the last step.
Each seed gives weights and batches of its own, so the spread over seeds of the dense way shows the size of a difference
without meaning. A warm-up of a quarter of the steps comes first in the ways that have one.
"""

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure.machine import Watch
from benchmarks.workloads import data
from benchmarks.workloads.char_gpt import CharGpt
from benchmarks.workloads.conv_net import stage

_RANKS = 2
_STEPS = 400
_MIB = 1 << 20
_HELD_OUT = 0.1

Batch = tuple[Tensor, Tensor]


class _Task:
    """A model, its optimizer's kind, batches of one rank, and its loss on held-out data."""

    model: nn.Module
    loss: Callable[[nn.Module, Batch], Tensor]
    held_out: Batch

    def batches(self, rank: int, count: int) -> list[Batch]:
        raise NotImplementedError

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        raise NotImplementedError


class _CharGpt(_Task):
    """The next character of torch's own source."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model, self._seed = CharGpt(width=64, layers=2, length=48), seed
        tokens = data.characters()
        middle = int(len(tokens) * (1 - _HELD_OUT))
        self._tokens = tokens[:middle]
        [self.held_out] = data.next_token_batches(tokens[middle:], batch=128, length=48, count=1, seed=99)

    @staticmethod
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        found: Tensor = model(*batch)
        return found

    def batches(self, rank: int, count: int) -> list[Batch]:
        return data.next_token_batches(self._tokens, batch=16, length=48, count=count, seed=_RANKS * self._seed + rank)

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=2e-3)


class _ConvNet(_Task):
    """Hand-written digits."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
        self.model, self._seed = nn.Sequential(stage(1, 32), nn.MaxPool2d(2), stage(32, 64), *head), seed
        images, labels = data.digits()
        order = torch.randperm(len(images), generator=data.generator(99))
        images, labels = images[order].view(-1, 1, 8, 8), labels[order]
        middle = int(len(images) * (1 - _HELD_OUT))
        self._images, self._labels = images[:middle], labels[:middle]
        self.held_out = images[middle:], labels[middle:]

    @staticmethod
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def batches(self, rank: int, count: int) -> list[Batch]:
        seed = _RANKS * self._seed + rank
        return data.shuffled_batches(self._images, self._labels, batch=32, count=count, seed=seed)

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


_TASKS: dict[str, type[Any]] = {"char_gpt": _CharGpt, "conv_net": _ConvNet}


def plan(case: dict[str, Any], threads: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"model": model, "seed": seed} for model in case["models"] for seed in range(case["seeds"])]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    watch = Watch(spec["cores"])
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="agspeed-losses-") as folder:
        peer = context.Process(target=_rank, args=(spec, Path(folder), 1), daemon=True)
        peer.start()
        try:
            rows = _rank(spec, Path(folder), 0)
        finally:
            peer.join(60)
            peer.kill()
    return {"model": spec["model"], "seed": spec["seed"], "rows": rows, "environment": watch.read()}


def _rank(spec: dict[str, Any], folder: Path, rank: int) -> list[dict[str, Any]]:
    """Trains in all ways, one after another. Returns a row for each of them."""
    import agspeed  # noqa: F401  registers the backend

    os.environ["AGSPEED_SOCKET_IFNAME"] = "lo"
    os.sched_setaffinity(0, {spec["cores"][rank % len(spec["cores"])]})
    torch.set_num_threads(1)
    distributed.init_process_group("agspeed", init_method=f"file://{folder / 'store'}", rank=rank, world_size=_RANKS)
    steps = spec["settings"]["steps"] or _STEPS
    rows = [_row(way, spec, rank, steps) for way in spec["case"]["ways"]]
    distributed.destroy_process_group()
    return rows


def _row(way: str, spec: dict[str, Any], rank: int, steps: int) -> dict[str, Any]:
    task: _Task = _TASKS[spec["model"]](spec["seed"])
    sent = _sent_bytes()
    if way.startswith("local"):
        losses, sends = _train_locally(way, task, rank, steps), ""
    else:
        losses, sends = _train_together(way, task, rank, steps)
    sent = _sent_bytes() - sent
    with torch.no_grad():
        held_out = float(task.loss(task.model.eval(), task.held_out))
    return {
        "way": way,
        "first": fmean(losses[:5]),
        "held_out": held_out,
        "sends": sends,
        "mib_per_step": sent / steps / _MIB,
        "equal": _are_equal(task.model),
    }


def _train_together(way: str, task: _Task, rank: int, steps: int) -> tuple[list[float], str]:
    """`way` is "dense", or a codec. A density follows "topk", and a rank follows "powersgd"."""
    from agspeed.distributed import hooks

    wrapped = DistributedDataParallel(task.model)
    name, *numbers = way.split()
    options: dict[str, Any] = {}
    if name == "topk":
        options = {"density": float(numbers[0]), "warmup_steps": steps // 4}
    elif name == "powersgd":
        options = {"rank": int(numbers[0]), "start_step": steps // 4}
    codec = getattr(hooks, name)(wrapped, **options) if name != "dense" else None
    losses = list(_losses(wrapped, task, task.optimizer(wrapped.parameters()), rank, steps))
    return losses, codec.sentence() if codec is not None else ""


def _train_locally(way: str, task: _Task, rank: int, steps: int) -> list[float]:
    """`way` is "local", the number of steps between synchronizations, and the number of fragments: "local 10 1"."""
    import agspeed

    every, fragments = map(int, way.split()[1:])
    optimizer = task.optimizer(task.model.parameters())
    local = agspeed.distributed.local_steps(task.model, optimizer, every=every, fragments=fragments, warmup=steps // 4)
    losses = list(_losses(task.model, task, optimizer, rank, steps))
    local.synchronize()
    return losses


def _losses(model: nn.Module, task: _Task, optimizer: torch.optim.Optimizer, rank: int, steps: int) -> Iterator[float]:
    for batch in task.batches(rank, steps):
        optimizer.zero_grad(set_to_none=True)
        loss = task.loss(model, batch)
        loss.backward()
        optimizer.step()
        yield float(loss.detach())


def _sent_bytes() -> int:
    from agspeed.distributed import counters

    found = counters()
    return int(found["shared_memory_bytes_sent"]) + sum(int(rail["bytes_sent"]) for rail in found["rails"])


def _are_equal(model: nn.Module) -> bool:
    """Whether all ranks have the same parameters, bit for bit."""
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    rows = flat.new_empty(_RANKS * len(flat))
    distributed.all_gather_into_tensor(rows, flat)
    return torch.equal(rows[: len(flat)], rows[len(flat) :])


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """A cell has failed if ranks ended with different parameters."""
    rows = []
    for model in case["models"]:
        own = [result for result in results if result["model"] == model]
        for at, way in enumerate(case["ways"]):
            found = [result["rows"][at] for result in own]
            losses = [row["held_out"] for row in found]
            rows.append(
                {
                    "model": model,
                    "way": way,
                    "first": fmean(row["first"] for row in found),
                    "held_out": losses,
                    "mean": fmean(losses),
                    "lowest": min(losses),
                    "highest": max(losses),
                    "mib_per_step": fmean(row["mib_per_step"] for row in found),
                    "sends": found[0]["sends"],
                    "equal": all(row["equal"] for row in found),
                }
            )
    dense = {row["model"]: row["mean"] for row in rows if row["way"] == "dense"}
    for row in rows:
        row["over_dense"] = row["mean"] / dense[row["model"]] if row["model"] in dense else None
    wrong = sorted({f"{row['way']} ({row['model']})" for row in rows if not row["equal"]})
    status = {"status": "failed", "reason": f"parameters differ: {', '.join(wrong)}"} if wrong else {"status": "ok"}
    return status | {"losses": rows, "environments": [result["environment"] for result in results]}
