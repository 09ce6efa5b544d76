# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of repeated names, which take another code path than new names."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

import agspeed.horovod.torch as hvd
from tests.python.horovod.programs import job, message_of


def unlike_tensors() -> list[torch.Tensor]:
    """Returns tensors that each differ from the one before in value, shape, type or number of dimensions."""
    ones = torch.ones
    return [ones(3), ones(3) * 2, ones(5), ones(5).double(), ones(1), ones(())]


def names_that_come_again() -> dict[str, Any]:
    with job() as (rank, _):
        found: dict[str, Any] = {}
        found["changing"] = [
            hvd.synchronize(hvd.allreduce_async_(each, name="again", op=hvd.Sum)) for each in unlike_tensors()
        ]
        operations = (hvd.Sum, hvd.Max, hvd.Average, hvd.Sum)
        found["operations"] = [
            hvd.synchronize(hvd.allreduce_async(torch.ones(2) * rank, name="again", op=op)) for op in operations
        ]
        kept = torch.ones(2)
        found["scaled"] = [
            hvd.synchronize(hvd.allreduce_async(kept, name="again", op=hvd.Sum, prescale_factor=factor))
            for factor in (1.0, 0.5, 1)
        ]
        found["kept"] = kept
        handles = [hvd.allreduce_async_(torch.ones(1), name=f"{at}", op=hvd.Sum) for at in range(3)]
        found["backwards"] = [hvd.synchronize(handle) for handle in reversed(handles)]
        found["taken"] = [hvd.synchronize(handle) for handle in handles]
        found["poll"] = message_of(lambda: hvd.poll(handles[0]))
        done = torch.ones(4)
        reference = weakref.ref(done)
        hvd.synchronize(hvd.allreduce_async_(done, name="again"))
        del done
        found["is held"] = reference() is not None
        left = hvd.allreduce_async_(torch.ones(4), name="left", op=hvd.Sum)
        while not hvd.poll(left):  # its handle is only polled
            pass
        found["left"] = message_of(lambda: hvd.synchronize(hvd.allreduce_async_(torch.ones(4), name="left")))
        return found


def ways_to_call() -> dict[str, Any]:
    """Calls allreduce_async_ with its arguments in all places, twice each, because repeated names take another path."""
    with job() as (_, size):
        whole = hvd.global_process_set
        part = hvd.add_process_set(list(range(size - 1)))
        is_in = part.included()

        def run(call: Callable[[torch.Tensor], Any]) -> list[torch.Tensor]:
            return [hvd.synchronize(handle=call(torch.ones(2))) for _ in range(2)]

        call: Any = hvd.allreduce_async_
        found: dict[str, Any] = {
            "positions": run(lambda x: call(x, None, "way", hvd.Sum, 0.5, 2.0, whole)),
            "keywords": run(lambda x: call(name="way", tensor=x, op=hvd.Sum, postscale_factor=2.0)),
            "average": run(lambda x: call(x, name="way")),
            "whole factor": run(lambda x: call(x, name="way", op=hvd.Sum, prescale_factor=2)),
            "no name": run(lambda x: call(x, op=hvd.Sum)),
            "set": run(lambda x: call(x, name="way", op=hvd.Sum, process_set=part)) if is_in else None,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found["old average"] = run(lambda x: call(x, False, name="way"))
        x = torch.ones(2)
        found["in place"] = hvd.synchronize(call(x, name="way")) is x
        found["strided"] = message_of(lambda: call(torch.ones(4)[::2], name="way"))
        found["two names"] = message_of(lambda: call(x, None, "way", name="way"))
        found["unknown"] = message_of(lambda: call(x, nome="way"))
        found["no tensor"] = message_of(lambda: call(name="way"))
        found["outside"] = "nothing" if is_in else message_of(lambda: call(x, name="way", process_set=part))
        hvd.remove_process_set(part)
    found["after the job"] = message_of(lambda: call(x, name="way"))
    return found


# --- mistakes of the caller -------------------------------------------------------------------------------------------


def _asynchronous(size: int) -> dict[str, Callable[[str], int]]:
    """Returns every asynchronous operation, as a function of the name."""
    x = torch.ones(2 * size)
    return {
        "allreduce": lambda name: hvd.allreduce_async(x, name=name),
        "allreduce_": lambda name: hvd.allreduce_async_(x.clone(), name=name),
        "grouped_allreduce": lambda name: hvd.grouped_allreduce_async([x, x], name=name),
        "grouped_allreduce of types": lambda name: hvd.grouped_allreduce_async([x, x.double()], name=name),
        "grouped_allreduce_": lambda name: hvd.grouped_allreduce_async_([x.clone(), x.clone()], name=name),
        "Adasum": lambda name: hvd.allreduce_async(x, name=name, op=hvd.Adasum),
        "allgather": lambda name: hvd.allgather_async(x, name),
        "grouped_allgather": lambda name: hvd.grouped_allgather_async([x, x], name),
        "broadcast": lambda name: hvd.broadcast_async(x, 0, name),
        "broadcast_": lambda name: hvd.broadcast_async_(x.clone(), 0, name),
        "alltoall": lambda name: hvd.alltoall_async(x, None, name),
        "reducescatter": lambda name: hvd.reducescatter_async(x, name),
        "grouped_reducescatter": lambda name: hvd.grouped_reducescatter_async([x, x], name),
    }


def names_under_way() -> dict[str, list[str]]:
    """Rank 0 starts each operation twice; the others start it once, after that. Returns the result of each call."""
    with job() as (rank, size):
        found = {}
        for kind, call in _asynchronous(size).items():
            handles: list[int] = []
            texts = []
            for _ in range(2 if rank == 0 else 0):
                texts.append(message_of(lambda call=call, handles=handles: handles.append(call("again"))))  # type: ignore[misc]
            hvd.barrier()
            if rank > 0:
                handles.append(call("again"))
            hvd.synchronize(handles[0])
            found[kind] = texts
        return found


def a_group_of_which_one_name_is_under_way() -> tuple[str, list[list[float]], list[list[float]]]:
    """Returns the error of a group of two types whose second name is in flight, its tensors after that, and what the
    same group gives once the name is free."""
    with job() as (rank, _):
        tensors = [torch.full((2,), rank + 1.0), torch.full((2,), rank + 1.0, dtype=torch.float64)]
        if rank == 0:
            handle = hvd.allreduce_async(tensors[1], name="group.Double")
            error = message_of(lambda: hvd.grouped_allreduce_async_(tensors, name="group", op=hvd.Sum))
        hvd.barrier()
        if rank > 0:
            handle = hvd.allreduce_async(tensors[1], name="group.Double")
            error = ""
        hvd.synchronize(handle)
        kept = [each.tolist() for each in tensors]
        hvd.grouped_allreduce_(tensors, name="group", op=hvd.Sum)
        return error, kept, [each.tolist() for each in tensors]


def calls_that_send_nothing() -> dict[str, str]:
    """Rank 0 makes each of these calls. The others do not wait for them, and the next operation works on all ranks."""
    with job() as (rank, size):
        x, sparse = torch.ones(size), torch.eye(2).to_sparse()
        scalar = torch.tensor(1.0)
        calls: dict[str, Callable[[], Any]] = {
            "too many rows": lambda: hvd.alltoall(x, [2] * size),
            "too few rows": lambda: hvd.alltoall(x, [0] * size),
            "negative": lambda: hvd.alltoall(x, [-1, size + 1, *[0] * (size - 2)]),
            "floats": lambda: hvd.alltoall(x, torch.ones(size)),
            "long": lambda: hvd.alltoall(x, torch.ones(size, dtype=torch.int64)),
            "matrix": lambda: hvd.alltoall(x, torch.ones(size, 1, dtype=torch.int32)),
            "count": lambda: hvd.alltoall(x, [1] * (size + 1)),
            "uneven": lambda: hvd.alltoall(torch.ones(size + 1)),
            "alltoall": lambda: hvd.alltoall(scalar),
            "allgather": lambda: hvd.allgather(scalar),
            "grouped_allgather": lambda: hvd.grouped_allgather([x, scalar]),
            "reducescatter": lambda: hvd.reducescatter(scalar),
            "Adasum": lambda: hvd.reducescatter(x.long(), op=hvd.Adasum),
            "sparse": lambda: hvd.allreduce_async(sparse),
            "sparse_": lambda: hvd.allreduce_async_(sparse, name="sparse"),
            "nothing": lambda: hvd.grouped_allreduce([]),
            "no tensor": lambda: hvd.allgather_async([1.0]),
            "sparse of complex": lambda: hvd.sparse_allreduce_async(sparse.to(torch.complex64), "x", hvd.Sum),
        }
        found = {}
        for name, call in calls.items():
            found[name] = message_of(call) if rank == 0 else ""
            assert hvd.allreduce(x, name="a", op=hvd.Sum).tolist() == [size] * size, name
        return found


def alltoall_without_splits() -> dict[str, Any]:
    """Ranks have different numbers of rows. Returns results, gradients, and the value of a handle."""
    with job() as (rank, size):
        x = torch.arange(float(size * (rank + 1)), requires_grad=True)
        rows = hvd.alltoall(x)
        (rows * (rank + 1)).sum().backward()
        empty = hvd.alltoall(x.detach(), torch.empty(0, dtype=torch.int32))
        return {
            "rows": rows.detach(),
            "gradient": x.grad,
            "handle": hvd.synchronize(hvd.alltoall_async(x.detach())),
            "empty": empty,
        }


def result_taken_after_the_job() -> torch.Tensor:
    """Runs in a process of its own. The result is the last owner of the connections, whose thread waits for Python's
    GIL."""
    store = distributed.HashStore()
    distributed.init_process_group("agspeed", store=store, rank=0, world_size=1)
    has_begun, may_end = threading.Event(), threading.Event()

    def called_back(future: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            return  # the operation had already ended
        has_begun.set()
        may_end.wait()

    with job():
        hvd.synchronize(hvd.allreduce_async_(torch.ones(1), name="left"))
        handle = hvd.allreduce_async_(torch.ones(2), name="left")
        while not hvd.poll(handle):
            pass
        while not has_begun.wait(0.01):
            distributed.all_reduce(torch.ones(1), async_op=True).get_future().then(called_back)
    distributed.destroy_process_group()
    gc.collect()
    sys.setswitchinterval(1000)  # so that a thread keeps the GIL until it releases it
    may_end.set()
    return hvd.synchronize(handle)


if __name__ == "__main__":
    print(globals()[sys.argv[1]]())
