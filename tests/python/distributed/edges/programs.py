# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of process groups in unusual situations, on every rank of a default group."""

from __future__ import annotations

import contextlib
import datetime
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d

CPU = torch.device("cpu")
_TIMEOUT = datetime.timedelta(seconds=60)


def _matrix(value: float, rows: int = 3, columns: int = 4) -> torch.Tensor:
    """Returns a tensor that is not contiguous, so that results have to be copied into it."""
    return torch.full((columns, rows), float(value)).t()


# --- coalescing scopes ------------------------------------------------------------------------------------------------


def sums_after_a_refused_batch(position: int) -> list[float]:
    """Returns sums over the ranks after a refused batch of messages. The message at `position` goes to this rank
    itself."""
    rank, size = dist.get_rank(), dist.get_world_size()
    received = torch.zeros(3)
    batch = [
        dist.P2POp(dist.isend, torch.full((3,), float(rank)), (rank + 1) % size),
        dist.P2POp(dist.irecv, received, (rank - 1) % size),
    ]
    batch.insert(position, dist.P2POp(dist.isend, torch.ones(3), rank))
    with contextlib.suppress(ValueError, RuntimeError):
        dist.batch_isend_irecv(batch)
        raise AssertionError("the batch was not refused")
    return _sums()


def sums_after_an_exception_in_a_scope(device: torch.device | None) -> list[float]:
    """Returns sums over the ranks after an exception in a coalescing scope with a message in flight."""
    rank, size = dist.get_rank(), dist.get_world_size()
    with contextlib.suppress(KeyError), dist._coalescing_manager(device=device):
        dist.isend(torch.ones(2), (rank + 1) % size)
        received = dist.irecv(torch.zeros(2), (rank - 1) % size)
        assert received is not None
        received.wait()
        raise KeyError("the caller's own")
    return _sums()


def _sums() -> list[float]:
    """Sums by operations that torch collects in a scope, and by one that it does not."""
    size = dist.get_world_size()
    reduced, whole, part, copied = torch.ones(3), torch.zeros(size), torch.zeros(1), torch.ones(1)
    dist.all_reduce(reduced)
    dist.all_gather_into_tensor(whole, torch.ones(1))
    dist.reduce_scatter_tensor(part, torch.ones(size))
    dist.broadcast(copied, src=0)
    return [float(each.sum()) for each in (reduced, whole, part, copied)]


def strided_results_in_a_scope(is_waited_for: bool) -> list[torch.Tensor]:
    """Returns the results of receives and broadcasts into tensors that are not contiguous, in a coalescing scope. With
    `is_waited_for`, each is also waited for where it is called, not only at the end of the scope."""
    rank, size = dist.get_rank(), dist.get_world_size()
    results = [_matrix(0.0) for _ in range(4)]
    with dist._coalescing_manager(device=CPU, async_ops=True) as works:
        sent = [dist.isend(_matrix(rank + number), (rank + 1) % size) for number in range(2)]
        for number, result in enumerate(results):
            is_message = number < 2
            work: Any = (
                dist.irecv(result, (rank - 1) % size)
                if is_message
                else dist.broadcast(result.fill_(rank + number), src=0, async_op=True)
            )
            if is_waited_for:
                work.wait()
    works.wait()
    assert all(work is not None and work.is_completed() for work in sent)
    return results


def future_of_a_scope() -> list[torch.Tensor]:
    """Returns the value of the future of a scope's work."""
    with dist._coalescing_manager(device=CPU, async_ops=True) as works:
        for number in range(3):
            dist.broadcast(_matrix(dist.get_rank() + number), src=0, async_op=True)
    [work] = works.works
    value: list[torch.Tensor] = work.get_future().wait()
    return value


# --- inference mode ---------------------------------------------------------------------------------------------------

Start = Callable[[], tuple[Any, Any]]


def _operations() -> dict[str, Start]:
    """By name: functions that start an operation into non-contiguous tensors and return its work and its results."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def all_reduce() -> tuple[Any, Any]:
        value = _matrix(rank + 1)
        return dist.all_reduce(value, async_op=True), value

    def broadcast() -> tuple[Any, Any]:
        value = _matrix(rank + 1)
        return dist.broadcast(value, src=1, async_op=True), value

    def all_gather() -> tuple[Any, Any]:
        values = [_matrix(0) for _ in range(size)]
        return dist.all_gather(values, _matrix(rank + 1), async_op=True), values

    def reduce_scatter() -> tuple[Any, Any]:
        value = _matrix(0)
        return dist.reduce_scatter(value, [_matrix(rank + peer) for peer in range(size)], async_op=True), value

    def receive() -> tuple[Any, Any]:
        value = _matrix(0)
        dist.isend(_matrix(rank + 1), (rank + 1) % size)
        return dist.irecv(value, (rank - 1) % size), value

    def coalesced() -> tuple[Any, Any]:
        values = [_matrix(rank + 1), _matrix(rank + 2)]
        return dist.group.WORLD.allreduce_coalesced(values), values  # type: ignore[union-attr]

    def sparse() -> tuple[Any, Any]:
        value = torch.eye(3).mul(rank + 1).to_sparse()
        return dist.all_reduce(value, async_op=True), value

    operations = (all_reduce, broadcast, all_gather, reduce_scatter, receive, coalesced, sparse)
    return {each.__name__: each for each in operations}


@contextlib.contextmanager
def _profiled() -> Iterator[None]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        yield


def results_of_works(is_inference: bool, end: str) -> dict[str, Any]:
    """Returns the results of operations, started in inference mode or not. `end` names how they are waited for: by
    "wait", by "future", in a "profile", or "outside" the mode."""
    found = {}
    for name, start in _operations().items():
        with torch.inference_mode(is_inference), _profiled() if end == "profile" else contextlib.nullcontext():
            work, results = start()
            if end in ("wait", "profile"):
                work.wait()
            elif end == "future":
                work.get_future().wait()
        if end == "outside":
            work.wait()
        values = results if isinstance(results, list) else [results]
        found[name] = [value.to_dense().clone() for value in values]
    return found


def trained_on_received_values() -> float:
    """Returns a gradient through tensors that were made before inference mode and received within it."""
    dense, sparse = _matrix(dist.get_rank()), torch.eye(3).to_sparse()
    with torch.inference_mode():
        works = [dist.all_reduce(dense, async_op=True), dist.all_reduce(sparse, async_op=True)]
        for work in works:
            assert work is not None
            work.wait()
    sparse.coalesce().values().mul_(2)
    weight = torch.ones(1, requires_grad=True)
    (weight * dense).sum().backward()
    assert weight.grad is not None
    return float(weight.grad)


# --- errors and timeouts ----------------------------------------------------------------------------------------------


def error_of_copying_back() -> str:
    """Returns the error if results cannot be copied into the caller's tensor."""
    try:
        dist.all_reduce(torch.ones(1).expand(4))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def error_after_set_timeout(seconds: float) -> tuple[str, list[str]]:
    """Returns, on rank 0, the error of an all-reduce that no other rank joins after the group's timeout was set. Also
    returns the warnings of setting it."""
    store = distributed_c10d._get_default_store()
    group = dist.new_group()
    if dist.get_rank() != 0:
        store.wait(["rank 0 has failed"], _TIMEOUT)
        return "", []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=seconds), group)
    error = ""
    try:
        dist.all_reduce(torch.ones(3), group=group)
    except RuntimeError as raised:
        error = str(raised)
    store.set("rank 0 has failed", "yes")
    return error, [str(each.message) for each in caught if each.category is UserWarning]
