# SPDX-License-Identifier: Apache-2.0
"""Where this rank stands, and what the library can do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from agspeed.horovod.environment import DYNAMIC
from agspeed.horovod.exceptions import HorovodInternalError
from agspeed.horovod.torch import job
from agspeed.horovod.torch.job import is_initialized
from agspeed.horovod.torch.process_sets import ProcessSet, register, unregister_all

__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Joins the job; all ranks call it. A second call does nothing.

    comm: None or all ranks. process_sets: sets to make known, or "dynamic" so that they can be added later.
    """
    if is_initialized():
        return
    if isinstance(process_sets, str) and process_sets.lower() != "dynamic":
        raise ValueError(f'process_sets={process_sets!r} is not valid: give a list of hvd.ProcessSet, or "dynamic".')
    job.init(comm)
    current = job.current()
    if isinstance(process_sets, str):
        current.options = replace(current.options, are_process_sets_dynamic=True)
    else:
        for each in process_sets or ():
            register(each)


def shutdown() -> None:
    """Leaves the job. Operations of other ranks that wait for this one fail."""
    unregister_all()
    job.shutdown()


def rank() -> int:
    """This process's number among all ranks."""
    return job.current().where.rank


def size() -> int:
    """All ranks."""
    return job.current().where.size


def local_rank() -> int:
    """This process's number on its host."""
    return job.current().where.local_rank


def local_size() -> int:
    """Ranks on this host."""
    return job.current().where.local_size


def cross_rank() -> int:
    """This host's number among those that have a rank of this local number."""
    return job.current().where.cross_rank


def cross_size() -> int:
    """Hosts that have a rank of this local number."""
    return job.current().where.cross_size


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Rank 0 writes a trace of all operations from now on, in Chrome's format.

    Raises: ValueError unless HOROVOD_TIMELINE=DYNAMIC, HorovodInternalError for a file that cannot be written.
    """
    _check_timeline()
    try:
        job.current().group.start_timeline(str(file_path), mark_cycles)
    except (RuntimeError, ValueError) as error:
        raise HorovodInternalError(str(error)) from None


def stop_timeline() -> None:
    """Ends the trace. Raises: ValueError unless HOROVOD_TIMELINE=DYNAMIC."""
    _check_timeline()
    job.current().group.stop_timeline()


def _check_timeline() -> None:
    if os.environ.get("HOROVOD_TIMELINE") != DYNAMIC:
        raise ValueError("Set HOROVOD_TIMELINE=DYNAMIC to enable dynamic timeline usage.")


def mpi_threads_supported() -> bool:
    """Whether calls of MPI may be mixed with ours: they may, as there is none in ours."""
    job.current()
    return True


def mpi_enabled() -> bool:
    """Whether MPI carries the messages: never."""
    return False


def mpi_built() -> bool:
    """Whether there is support for MPI: mpirun may start ranks, no message needs it."""
    return False


def gloo_enabled() -> bool:
    """Whether messages go over sockets, which is what scripts ask by this name."""
    return True


def gloo_built() -> bool:
    """As gloo_enabled."""
    return True


def nccl_built() -> int:
    """0: no operation here uses NCCL."""
    return 0


def ddl_built() -> bool:
    """Never."""
    return False


def ccl_built() -> bool:
    """Never."""
    return False


def cuda_built() -> bool:
    """Whether tensors may be on a CUDA device."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Whether tensors may be on a ROCm device."""
    return torch.version.hip is not None
