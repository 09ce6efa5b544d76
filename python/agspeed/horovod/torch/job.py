# SPDX-License-Identifier: Apache-2.0
"""The job that this process is a rank of: init(), shutdown(), and the place of each rank.

The ranks find each other through a store of torch: the store of torch.distributed's default group if there is one, else
the launcher's. In an elastic job, init() waits for the next epoch, and uses the store of that epoch. The connections,
and the negotiation that matches operations by name, are C++ (``comm/named``).

Threading: one thread calls init() and shutdown(); any thread may call the rest.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from agspeed import native
from agspeed.elastic import member as members
from agspeed.errors import AgspeedError, UserError
from agspeed.horovod import environment
from agspeed.horovod.torch import quick
from agspeed.horovod.torch.autotune import Autotuner
from agspeed.log import warn_once
from agspeed.membership.messages import Place
from agspeed.torch_compat import c10d

__all__ = ["Follower", "Job", "current", "followers", "init", "is_initialized", "shutdown"]

_NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


@dataclass
class Job:
    """A job between init() and shutdown()."""

    group: Any
    """_native.NamedGroup of all ranks."""
    where: environment.Placement
    options: environment.Options
    tuner: Autotuner | None = None
    """Only at rank 0, and only if HOROVOD_AUTOTUNE asks for it."""
    parts: dict[int, Any] = field(default_factory=dict)
    """The groups of all process sets but the global one, by their number; None if this rank is not in the set."""
    is_early: bool = False
    """Whether ranks of this job may train already, and expect this rank in the function of hvd.elastic.run."""

    def check_not_early(self) -> None:
        """Raises: UserError if an operation of this rank would wait for ever, because it `is_early`."""
        if self.is_early:
            raise UserError(
                "this rank has joined a job that trains, and starts an operation before the function of "
                "hvd.elastic.run, where the other ranks do not take part in it: leave it out, because hvd.elastic.run "
                "gives new ranks the state of the others, or move it into that function."
            )


class Follower(Protocol):
    """An object that outlives a job and takes part in the next one."""

    def job_began(self) -> None:
        """Called after init()."""


followers: weakref.WeakSet[Follower] = weakref.WeakSet()

_job: Job | None = None
_store: Any = None
"""The store of the first init(). It is kept, because the other ranks expect its server at the next init(), too."""


def current() -> Job:
    """The current job. Raises: ValueError before init() and after shutdown()."""
    if _job is None:
        raise ValueError(_NOT_INITIALIZED)
    return _job


def is_initialized() -> bool:
    return _job is not None


def init(comm: Any = None) -> None:
    """Connects to the other ranks; blocks until all have called it. A second call does nothing.

    comm: None, or the list of all ranks. A job of only a part of the ranks is refused.
    """
    global _job
    if _job is not None:
        return
    member, options = members.of_this_process(), environment.options()
    where = _placement() if member is None else _placement_of(member.next_place())
    if comm is not None and not _is_whole_job(comm, where.size):
        raise UserError(
            f"init(comm={comm!r}): only all {where.size} ranks make a job here; start as many as you need, or use "
            "process_sets for parts of them."
        )
    module = native.load()
    if module is None:
        raise AgspeedError(f"agspeed.horovod.torch is not there: {native.why_missing()}")
    native.configure()
    group = module.create_named_group(
        _find_store(where) if member is None else member.store(),
        where.rank,
        where.size,
        fusion_bytes=options.fusion_bytes,
        order=options.fusion_order,
        cache_capacity=options.cache_capacity,
        stall_warning=options.stall_warning,
        stall_shutdown=options.stall_shutdown,
        timeout=options.timeout,
    )
    _job = Job(group, where, options, is_early=member is not None and member.has_predecessors)
    quick.use(group)
    if options.timeline:
        group.start_timeline(options.timeline, options.marks_cycles)
    if options.is_tuned and where.rank == 0:
        _job.tuner = Autotuner(group, where, options)
    for follower in list(followers):
        follower.job_began()
    sentence = environment.without_effect()
    if sentence and where.rank == 0:
        warn_once(sentence, sentence)
    atexit.register(shutdown)


def shutdown() -> None:
    """Leaves the job. Operations of other ranks that wait for this rank fail. Does nothing before init()."""
    global _job
    if _job is None:
        return
    job, _job = _job, None
    quick.use(None)
    atexit.unregister(shutdown)
    if job.tuner is not None:
        job.tuner.finish()
    for part in job.parts.values():
        if part is not None:
            part.shutdown()
    job.parts.clear()
    job.group.shutdown()
    job.group.stop_timeline()


def _is_whole_job(comm: Any, size: int) -> bool:
    if isinstance(comm, Sequence):
        return sorted(comm) == list(range(size)) or len(comm) == 0
    return getattr(comm, "Get_size", lambda: -1)() == size


def _placement() -> environment.Placement:
    where = environment.placement()
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return where
    rank, size = distributed.get_rank(), distributed.get_world_size()
    if (rank, size) == (where.rank, where.size):
        return where
    return environment.Placement(rank, size, rank, size, 0, 1)  # started by hand; assume one host


def _placement_of(place: Place) -> environment.Placement:
    return environment.Placement(
        place.rank, place.size, place.local_rank, place.local_size, place.cross_rank, place.cross_size
    )


def _find_store(where: environment.Placement) -> Any:
    global _store
    distributed: Any = torch.distributed
    if _store is None:
        if distributed.is_initialized():
            _store = c10d.default_store()
        elif where.size == 1:
            _store = distributed.HashStore()
        else:
            address, port = environment.rendezvous_address(where)
            url = f"tcp://{address}:{port}"
            if {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
                url = "env://"  # torchrun may have made the store already
            _store = next(distributed.rendezvous(url, where.rank, where.size))[0]
    return distributed.PrefixStore("agspeed.horovod", _store)
