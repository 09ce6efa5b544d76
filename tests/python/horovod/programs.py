# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of agspeed.horovod.torch, on every rank of a default group."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

import agspeed.horovod.torch as hvd
from tests.python.distributed import delayed_device, training

ADAPTIVE = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}


@contextlib.contextmanager
def job() -> Iterator[tuple[int, int]]:
    hvd.init()
    try:
        yield hvd.rank(), hvd.size()
        hvd.barrier()  # no rank leaves while another still waits
    finally:
        hvd.shutdown()


def message_of(action: Callable[[], Any]) -> str:
    """Returns the type and text of the error that the action raises."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


# --- operations -------------------------------------------------------------------------------------------------------


def every_operation(on_host: bool = True) -> dict[str, Any]:
    """Runs every operation. Without `on_host` it leaves out the sparse one, which the tests' device does not
    support."""
    with job() as (rank, size):
        x = torch.arange(6.0).reshape(3, 2) + rank
        y = x.clone()
        grouped = [x.clone(), torch.ones(2) * rank]
        sent, received = hvd.alltoall(torch.arange(size + 1) + 10 * rank, splits=[2, *[1] * (size - 1)])
        made = {}
        if on_host:
            sparse = torch.sparse_coo_tensor(torch.tensor([[rank, 0]]), torch.tensor([1.0, 2.0]), (size,))
            made["sparse"] = hvd.sparse_allreduce_async(sparse, "sparse", hvd.Sum)().to_dense()
        return made | {
            "average": hvd.allreduce(x),
            "sum": hvd.allreduce(x, op=hvd.Sum),
            "max": hvd.allreduce(x, op=hvd.Max),
            "min": hvd.allreduce(x, op=hvd.Min),
            "product": hvd.allreduce(x, op=hvd.Product),
            "scaled": hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0),
            "integers": hvd.allreduce(torch.arange(4) + rank),
            "bfloat16": hvd.allreduce(x.bfloat16(), op=hvd.Sum).float(),
            "compressed": hvd.allreduce(x, compression=hvd.Compression.fp16),
            "input": x,
            "in place": [hvd.allreduce_(y, op=hvd.Sum), y],
            "grouped": hvd.grouped_allreduce(grouped, op=hvd.Sum),
            "grouped in place": [hvd.grouped_allreduce_(grouped, op=hvd.Sum), grouped],
            "gathered": hvd.allgather(torch.full((rank + 1, 2), float(rank))),
            "grouped gathered": hvd.grouped_allgather([torch.tensor([rank]), torch.ones(rank, 1)]),
            "broadcast": hvd.broadcast(x, size - 1),
            "bools": hvd.broadcast(torch.tensor([rank == 0, True]), 0),
            "exchanged": hvd.alltoall(torch.arange(size) + 10 * rank),
            "exchanged by splits": [sent, received],
            "scattered": hvd.reducescatter(torch.arange(size + 1.0), op=hvd.Sum),
            "grouped scattered": hvd.grouped_reducescatter([torch.arange(size * 2.0), torch.ones(size)]),
            "object": hvd.broadcast_object({"rank": rank}, 0),
            "objects": hvd.allgather_object(("rank", rank)),
            "unknown handle": hvd.synchronize(123456),
        }


def on_device() -> dict[str, Any]:
    """Runs every_operation on tensors of an accelerator. Returns results on the host."""
    with torch.device(delayed_device.NAME):
        found = every_operation(on_host=False)
    return tree_map(lambda each: each.cpu() if isinstance(each, torch.Tensor) else each, found)


def random_programs(seeds: list[int]) -> list[str]:
    """Runs a program per seed; each rank has an order of its own. Returns the differences from NumPy's results."""
    import random

    found = []
    with job() as (rank, size):
        half = hvd.add_process_set(list(range(0, size, 2)))
        for seed in seeds:
            common = random.Random(seed)
            steps = [_random_step(common, seed, at, size) for at in range(common.randint(1, 20))]
            order = list(range(len(steps)))
            random.Random(seed * 100 + rank).shuffle(order)
            started: dict[int, Any] = {}
            for at in order:
                process_set = half if steps[at]["half"] else hvd.global_process_set
                if process_set.included():
                    started[at] = _start(steps[at], process_set, rank)
            for at in sorted(started):
                result = hvd.synchronize(started[at])
                expected = steps[at]["expected"](half.ranks if steps[at]["half"] else list(range(size)), rank)
                if not torch.allclose(result.double(), expected.double(), rtol=0, atol=steps[at]["tolerance"]):
                    found.append(f"seed {seed}, {size} ranks, rank {rank}, step {at}, {steps[at]['kind']}")
            # Ranks end at different times. Ranks that have ended contribute zeros.
            for more in range(common.randint(0, 3) + rank):
                hvd.allreduce(torch.ones(3), name=f"more.{more}", op=hvd.Sum)
            hvd.join()
        hvd.remove_process_set(half)
    return found


def _random_step(common: Any, seed: int, at: int, size: int) -> dict[str, Any]:
    kind = common.choice(["sum", "average", "max", "gather", "broadcast"])
    rows, columns = common.choice([0, 1, 7, 300, 5000]), common.randint(1, 3)
    dtype = common.choice([torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64])
    if kind == "average":
        dtype = torch.float64
    is_half = common.random() < 0.3 and kind != "broadcast"
    root = common.randrange(size)

    def values(rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed * 1000 + at * 10 + rank)
        count = rows if kind != "gather" else (rows + rank) % 50
        return torch.randint(-8, 8, (count, columns), generator=generator).to(dtype)

    def expected(ranks: list[int], rank: int) -> torch.Tensor:
        if kind == "gather":
            return torch.cat([values(each) for each in ranks])
        if kind == "broadcast":
            return values(root)
        stacked = torch.stack([values(each).double() for each in ranks]).numpy()
        reduced = {"max": stacked.max, "average": stacked.mean}.get(kind, stacked.sum)(0)
        return torch.from_numpy(reduced)

    return {
        "kind": kind,
        "half": is_half,
        "root": root,
        "values": values,
        "expected": expected,
        "name": f"{kind}.{at}",
        # Zero for the others, because their results are sums of small whole numbers.
        "tolerance": 1e-12 if kind == "average" else 0.0,
    }


def _start(step: dict[str, Any], process_set: Any, rank: int) -> int:
    tensor, kind, name = step["values"](rank), step["kind"], step["name"]
    if kind == "gather":
        return hvd.allgather_async(tensor, name, process_set)
    if kind == "broadcast":
        return hvd.broadcast_async(tensor, step["root"], name, process_set)
    op = {"sum": hvd.Sum, "average": hvd.Average, "max": hvd.Max}[kind]
    return hvd.allreduce_async(tensor, name=name, op=op, process_set=process_set)


def wrong_calls() -> dict[str, str]:
    """Makes wrong calls, by name; the correct call after each has to work."""
    found = {}
    with job() as (rank, size):
        x = torch.ones(4)
        calls: dict[str, Callable[[], Any]] = {
            "both": lambda: hvd.allreduce(x, average=True, op=hvd.Sum),
            "type": lambda: hvd.allreduce(x.to(torch.int8)),
            "stride": lambda: hvd.allreduce(torch.ones(4, 4).t()),
            "op": lambda: hvd.allreduce(x, op=77),
            "Adasum": lambda: hvd.allreduce(x, op=hvd.Adasum),
            "root": lambda: hvd.broadcast(x, size),
            "rows": lambda: hvd.alltoall(torch.ones(size + 1)),
            "splits": lambda: hvd.alltoall(torch.ones(size), splits=[size + 1, *[0] * (size - 1)]),
            "dimensions": lambda: hvd.allgather(torch.tensor(1.0), name="scalar"),
            "shapes": lambda: hvd.allreduce(torch.ones(rank + 1), name="a"),
            "rows of gather": lambda: hvd.allgather(torch.ones(2, rank + 1), name="a"),
            "types": lambda: hvd.allreduce(x.double() if rank else x, name="a"),
            "kinds": lambda: hvd.allgather(x, name="a") if rank else hvd.allreduce(x, name="a"),
            "operations": lambda: hvd.allreduce(x, name="a", op=hvd.Max if rank else hvd.Min),
            "roots": lambda: hvd.broadcast(x, min(rank, 1), name="a"),
            "factors": lambda: hvd.allreduce(x, name="a", prescale_factor=1.0 + rank),
            "object": lambda: hvd.allgather_object(object()),
            "set": lambda: hvd.allreduce(x, process_set=hvd.ProcessSet([0])),
            "handle": lambda: hvd.poll(123456),
            "timeline": lambda: hvd.start_timeline("x.json"),
        }
        for name, call in calls.items():
            found[name] = message_of(call)
            assert hvd.allreduce(x, name="a", op=hvd.Sum).tolist() == [size] * 4, name
        for early in range(size):  # the operation stays in flight until the other ranks start it, after the barrier
            if rank == early:
                first = hvd.allreduce_async(x, name="twice")
                found["twice"] = message_of(lambda: hvd.allreduce_async(x, name="twice"))
            hvd.barrier()
            if rank != early:
                first = hvd.allreduce_async(x, name="twice")
            hvd.synchronize(first)
    found["before init"] = message_of(hvd.rank)
    found["operation before init"] = message_of(lambda: hvd.allreduce(torch.ones(1)))
    return found


def join_with(kind: str) -> tuple[str, int]:
    with job() as (rank, size):
        text = "nothing"
        if rank == 0:
            text = message_of(lambda: hvd.allgather(torch.ones(2), name="gather"))
        last = hvd.join()
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size
    return text, last


def leave_early() -> str:
    hvd.init()
    if hvd.rank() == 0:
        hvd.shutdown()
        return ""
    text = message_of(lambda: hvd.allreduce(torch.ones(1)))
    hvd.shutdown()
    return text


def lose_a_rank(folder: Path) -> None:
    """The last rank is killed while the others wait for it. Each of the others writes its error to a file."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    hvd.allreduce(torch.ones(1))
    (folder / f"ready.{rank}").touch()
    if rank == size - 1:
        until = time.monotonic() + 30  # by then the other ranks have received everything
        while len(list(folder.glob("ready.*"))) < size and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / f"error.{rank}").write_text(message_of(lambda: hvd.allreduce(torch.ones(1), name="waits")))
    hvd.shutdown()


def init_again() -> list[float]:
    found = []
    for _ in range(3):
        with job() as (rank, _size):
            found.append(hvd.allreduce(torch.tensor([float(rank)]), op=hvd.Sum).item())
    return found


def adasum() -> Any:
    """Reduces vectors that are parallel, orthogonal and neither, also in bfloat16, and runs an optimizer's step."""
    with job() as (rank, size):
        vectors = torch.zeros(3, size)
        vectors[0, 0] = 2.0
        vectors[1, rank] = float(rank + 1)
        vectors[2] = torch.arange(size) - 2.0 * rank
        results = [hvd.allreduce(each.contiguous(), op=hvd.Adasum, name="adasum") for each in vectors]
        half = hvd.allreduce(vectors[2].bfloat16(), op=hvd.Adasum)
        layer = nn.Linear(size, 1, bias=False)
        with torch.no_grad():
            layer.weight.zero_()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(layer.parameters(), lr=0.5), layer.named_parameters(), op=hvd.Adasum
        )
        layer(torch.eye(size)[rank]).sum().backward()
        optimizer.step()
        skipped = message_of(optimizer.skip_synchronize)
        return results, half, layer.weight.detach(), skipped


def gradients() -> dict[str, torch.Tensor]:
    with job() as (rank, size):
        found = {}

        def gradient(name: str, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
            x = (torch.arange(float(2 * size)) + rank).requires_grad_()
            result = function(x)
            weights = torch.arange(1.0, result.numel() + 1) * (rank + 1)
            (result.reshape(-1) * weights).sum().backward()
            assert x.grad is not None
            found[name] = x.grad

        gradient("allreduce", lambda x: hvd.allreduce(x, op=hvd.Sum))
        gradient("grouped", lambda x: torch.cat(hvd.grouped_allreduce([x, 2 * x])))
        gradient("allgather", lambda x: hvd.allgather(x))
        gradient("broadcast", lambda x: hvd.broadcast(x, 0))
        gradient("alltoall", lambda x: hvd.alltoall(x))
        gradient("reducescatter", lambda x: hvd.reducescatter(x, op=hvd.Sum))
        return found


# --- process sets -----------------------------------------------------------------------------------------------------


def process_sets() -> dict[str, Any]:
    with job() as (rank, size):
        pair = hvd.add_process_set(hvd.ProcessSet([size - 1, 0]))
        found = {
            "facts": (pair.ranks, pair.size(), pair.rank(), pair.included(), pair.process_set_id),
            "again": message_of(lambda: hvd.add_process_set([0, size - 1])),
            "all": message_of(lambda: hvd.add_process_set(list(range(size)))),
            "unknown": message_of(lambda: hvd.add_process_set([0, size])),
        }
        if pair.included():
            found["sum"] = hvd.allreduce(torch.tensor([float(rank)]), op=hvd.Sum, process_set=pair).item()
            found["root"] = hvd.broadcast(torch.tensor([rank]), size - 1, process_set=pair).item()
            found["wrong root"] = message_of(lambda: hvd.broadcast(torch.tensor([rank]), 1, process_set=pair))
            hvd.barrier(process_set=pair)
        else:
            found["outside"] = message_of(lambda: hvd.allreduce(torch.ones(1), process_set=pair))
        found["removed"] = (hvd.remove_process_set(pair), hvd.remove_process_set(hvd.global_process_set))
        found["after"] = message_of(lambda: hvd.allreduce(torch.ones(1), process_set=pair))
        return found


def process_sets_of_init() -> tuple[Any, str]:
    pair = hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[pair])
    rank = hvd.rank()
    total = hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=pair).item() if pair.included() else None
    hvd.barrier()
    hvd.shutdown()
    return total, message_of(lambda: pair.size()) + f" at rank {rank}"


# --- training ---------------------------------------------------------------------------------------------------------


def ddp(steps: int, accumulate: int = 1) -> list[torch.Tensor]:
    wrapped = nn.parallel.DistributedDataParallel(training.model())
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    _train(wrapped, optimizer, steps, accumulate, wrapped.no_sync)
    return training.weights(wrapped)


def distributed_optimizer(steps: int, accumulate: int = 1, from_state: bool = False, **options: Any) -> Any:
    """Returns the weights and the class of the optimizer."""
    with job() as (rank, _size):
        module = training.model()
        if rank != 0:
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.add_(1.0)
        inner = torch.optim.SGD(module.parameters(), lr=0.1 if rank == 0 else 7.0, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.LambdaLR(inner, lambda _: 1.0) if from_state else None
        named = None if options.pop("without_names", False) else module.named_parameters()
        if options.pop("listed", False):
            parameters = list(module.parameters())
            options["groups"] = [parameters[:2], parameters[3:5]]
        optimizer = hvd.DistributedOptimizer(inner, named, backward_passes_per_step=accumulate, **options)
        hvd.broadcast_parameters(module.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        _train(module, optimizer, steps, accumulate, contextlib.nullcontext)
        if scheduler is not None:
            scheduler.step()
        assert isinstance(optimizer, torch.optim.SGD)
        return training.weights(module), type(optimizer).__name__


def _train(module: nn.Module, optimizer: Any, steps: int, accumulate: int, unsynchronized: Any) -> None:
    optimizer.zero_grad()
    for index, batch in enumerate(training.batches(steps * accumulate)):
        is_last = index % accumulate == accumulate - 1
        with contextlib.nullcontext() if is_last else unsynchronized():
            module(batch).square().mean().backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()


def clipped() -> list[torch.Tensor]:
    with job():
        module = training.model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(module.parameters(), lr=0.1), module.named_parameters(), hvd.Compression.fp16
        )
        for batch in training.batches(5):
            optimizer.zero_grad()
            module(batch).square().mean().backward()
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(module.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
        return training.weights(module)


def parts_that_rest() -> list[torch.Tensor]:
    """Ranks use different parts of a model. A part's gradient is zero on ranks that do not use it."""
    with job() as (rank, size):
        torch.manual_seed(0)
        parts = nn.ModuleList(nn.Linear(3, 3) for _ in range(size))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parts.parameters(), lr=1.0), parts.named_parameters())
        for _ in range(3):
            optimizer.zero_grad()
            parts[rank](torch.ones(2, 3)).sum().backward()
            optimizer.step()
        return [parameter.detach() for parameter in parts.parameters()]


def sparse_embedding(sparse_as_dense: bool) -> list[torch.Tensor]:
    with job() as (rank, _size):
        torch.manual_seed(0)
        module = nn.Embedding(10, 4, sparse=True)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(module.parameters(), lr=1.0), module.named_parameters(), sparse_as_dense=sparse_as_dense
        )
        for _ in range(2):
            optimizer.zero_grad()
            module(torch.tensor([rank, rank + 1, 5])).square().sum().backward()
            optimizer.step()
        return [module.weight.detach()]


def wrong_optimizers() -> dict[str, str]:
    with job():
        module = training.model()
        inner = torch.optim.SGD(module.parameters(), lr=0.1)
        named = list(module.named_parameters())
        found = {
            "names": message_of(lambda: hvd.DistributedOptimizer(inner, [("a", value) for _, value in named])),
            "missing": message_of(lambda: hvd.DistributedOptimizer(inner, named[1:])),
            "tuples": message_of(lambda: hvd.DistributedOptimizer(inner, module.parameters())),
            "divide": message_of(lambda: hvd.DistributedOptimizer(inner, op=hvd.Sum, gradient_predivide_factor=2.0)),
            "groups": message_of(lambda: hvd.DistributedOptimizer(inner, groups=-1)),
            "twice": message_of(lambda: hvd.DistributedOptimizer(inner, groups=[[named[0][1]], [named[0][1]]])),
            "params": message_of(lambda: hvd.broadcast_parameters(torch.ones(1), 0)),
            "LBFGS": message_of(lambda: hvd.broadcast_optimizer_state(torch.optim.LBFGS(module.parameters()), 0)),
        }
        optimizer = hvd.DistributedOptimizer(inner, named)
        batch = next(training.batches(1))
        module(batch).sum().backward()
        found["cleared"] = message_of(optimizer.zero_grad)
        found["backwards"] = message_of(lambda: module(batch).sum().backward())
        optimizer.synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        found["warned"] = " ".join(str(each.message) for each in caught)
        return found


def channels_last() -> list[torch.Tensor]:
    """Trains a model whose weights are not dense in the usual order."""
    with job() as (rank, _size):
        torch.manual_seed(rank)
        module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten()).to(memory_format=torch.channels_last)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=0.1), module.named_parameters())
        hvd.broadcast_parameters(module.state_dict(), 0)
        for _ in range(2):
            optimizer.zero_grad()
            module(torch.randn(2, 2, 5, 5)).square().sum().backward()
            optimizer.step()
        assert not module[0].weight.is_contiguous()
        return training.weights(module)


def adam_state_of_rank_zero() -> Any:
    with job() as (rank, _size):
        module = training.model()
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01 * (rank + 1), betas=(0.8, 0.9 + 0.01 * rank))
        if rank == 0:
            module(next(training.batches(1))).sum().backward()
            optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, 0)
        state = optimizer.state_dict()
        tensors = [each for entry in state["state"].values() for each in entry.values()]
        options = [(group["lr"], group["betas"]) for group in state["param_groups"]]
        return tensors, options


def batch_norm() -> tuple[torch.Tensor, ...]:
    """Returns output, gradient and statistics for this rank's rows."""
    with job() as (rank, size):
        whole = _images(size)
        layer = hvd.SyncBatchNorm(5).double()
        own = whole[3 * rank : 3 * rank + 3].clone().requires_grad_()
        result = layer(own)
        (result * _images(size)[3 * rank : 3 * rank + 3].sin()).sum().backward()
        assert own.grad is not None and layer.running_mean is not None and layer.running_var is not None
        return result.detach(), own.grad, layer.running_mean, layer.running_var


def whole_batch_norm(size: int) -> tuple[torch.Tensor, ...]:
    whole = _images(size).requires_grad_()
    layer = nn.BatchNorm2d(5).double()
    result = layer(whole)
    (result * _images(size).sin()).sum().backward()
    assert whole.grad is not None and layer.running_mean is not None and layer.running_var is not None
    return result.detach(), whole.grad, layer.running_mean, layer.running_var


def _images(size: int) -> torch.Tensor:
    return torch.randn(3 * size, 5, 2, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + 100


# --- elastic, at fixed size -------------------------------------------------------------------------------------------


def elastic_training(fail_at: int) -> dict[str, Any]:
    """Runs ten batches and commits every second one. At one of them a collective fails on all ranks."""
    with job() as (rank, _size):
        module = training.model()
        with torch.no_grad():
            module[-1].bias.add_(float(rank))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=0.1), module.named_parameters())
        state = hvd.elastic.TorchState(model=module, optimizer=optimizer, batch=0, note=f"rank {rank}")
        resets: list[int] = []
        state.register_reset_callbacks([lambda: resets.append(state.batch)])
        failures = []

        @hvd.elastic.run
        def train(state: Any) -> str:
            batches = list(training.batches(10))
            while state.batch < 10:
                optimizer.zero_grad()
                module(batches[state.batch]).square().mean().backward()
                optimizer.step()
                state.batch += 1
                if state.batch == fail_at and not failures:
                    failures.append(message_of(lambda: hvd.allreduce(torch.ones(rank + 1), name="wrong")))
                    hvd.allreduce(torch.ones(rank + 1), name="wrong")
                if state.batch % 2 == 0:
                    state.commit()
            return str(state.note)

        note = train(state)
        return {"note": note, "weights": training.weights(module), "resets": resets, "failures": len(failures)}


def elastic_failure_that_repeats() -> tuple[str, int]:
    with job() as (rank, _size):
        state = hvd.elastic.TorchState(tries=0)
        tries = []

        @hvd.elastic.run
        def train(state: Any) -> None:
            tries.append(state.tries)
            hvd.allreduce(torch.ones(rank + 1), name="wrong")

        return message_of(lambda: train(state)), len(tries)


def elastic_sampler() -> dict[str, Any]:
    with job():
        sampler = hvd.elastic.ElasticSampler(range(11), shuffle=True, seed=3)
        first = list(sampler)
        sampler.record_batch(0, 2)
        state = sampler.state_dict()
        sampler.load_state_dict(state)
        rest = list(sampler)
        sampler.set_epoch(1)
        return {"first": first, "state": state, "rest": rest, "next": list(sampler), "length": len(sampler)}


def elastic_sampler_of_ranks_that_were_interrupted() -> tuple[int, int]:
    """Rank 1 has counted one batch more than rank 0, as after an interruption between the two. Returns: the number of
    batches, and of samples that the sampler has counted, after they are synchronized."""
    with job() as (rank, _size):
        state = hvd.elastic.TorchState(sampler=hvd.elastic.ElasticSampler(range(11)), batch=0)
        for number in range(1 + rank):
            state.sampler.record_batch(number, 1)
            state.batch += 1
        state.sync()
        return state.batch, state.sampler.processed_num
