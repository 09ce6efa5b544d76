# SPDX-License-Identifier: Apache-2.0
"""What ranks do in the tests of names that come again, which take another way through the calls than new ones."""

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
    """Each unlike the one before it, in value, shape, type or dimensions."""
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
        found["same name"] = message_of(lambda: hvd.allreduce_async_(torch.ones(1), name="1", op=hvd.Sum))
        found["backwards"] = [hvd.synchronize(handle) for handle in reversed(handles)]
        found["taken"] = [hvd.synchronize(handle) for handle in handles]
        found["poll"] = message_of(lambda: hvd.poll(handles[0]))
        done = torch.ones(4)
        reference = weakref.ref(done)
        hvd.synchronize(hvd.allreduce_async_(done, name="again"))
        del done
        found["is held"] = reference() is not None
        left = hvd.allreduce_async_(torch.ones(4), name="left", op=hvd.Sum)
        while not hvd.poll(left):  # nobody waits for it
            pass
        found["left"] = message_of(lambda: hvd.synchronize(hvd.allreduce_async_(torch.ones(4), name="left")))
        return found


def ways_to_call() -> dict[str, Any]:
    """allreduce_async_ with its arguments in all places, twice each: names that come again take another way."""
    with job() as (_, size):
        everybody = hvd.global_process_set
        part = hvd.add_process_set(list(range(size - 1)))
        is_in = part.included()

        def run(call: Callable[[torch.Tensor], Any]) -> list[torch.Tensor]:
            return [hvd.synchronize(handle=call(torch.ones(2))) for _ in range(2)]

        call: Any = hvd.allreduce_async_
        found: dict[str, Any] = {
            "positions": run(lambda x: call(x, None, "way", hvd.Sum, 0.5, 2.0, everybody)),
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


def result_taken_after_the_job() -> torch.Tensor:
    """In a process of its own. The result is the last to keep the connections, whose thread waits for Python's lock."""
    store = distributed.HashStore()
    distributed.init_process_group("agspeed", store=store, rank=0, world_size=1)
    has_begun, may_end = threading.Event(), threading.Event()

    def called_back(future: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            return  # it was done already
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
    sys.setswitchinterval(1000)  # only who lets the lock go loses it
    may_end.set()
    return hvd.synchronize(handle)


if __name__ == "__main__":
    print(globals()[sys.argv[1]]())
