# SPDX-License-Identifier: Apache-2.0
"""The ranks and sizes of this process, and the features of this library."""

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

    comm: None or all ranks. process_sets: sets to register, or "dynamic" to allow add_process_set() later.
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
    """Leaves the job. Operations of other ranks that wait for this rank fail."""
    unregister_all()
    job.shutdown()


def rank() -> int:
    """The rank of this process in the job."""
    return job.current().where.rank


def size() -> int:
    """The number of ranks in the job."""
    return job.current().where.size


def local_rank() -> int:
    """The rank of this process among the ranks on its host."""
    return job.current().where.local_rank


def local_size() -> int:
    """The number of ranks on this host."""
    return job.current().where.local_size


def cross_rank() -> int:
    """The number of this host among the hosts that have a rank with this local rank."""
    return job.current().where.cross_rank


def cross_size() -> int:
    """The number of hosts that have a rank with this local rank."""
    return job.current().where.cross_size


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Makes rank 0 write a trace of all operations from now on, in Chrome's format.

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
    """Whether the script may call MPI beside this library: True, because this library does not call MPI."""
    job.current()
    return True


def mpi_enabled() -> bool:
    """Whether MPI carries the messages: always False."""
    return False


def mpi_built() -> bool:
    """Whether MPI support is built in: always False. mpirun can start ranks, but no message goes through MPI."""
    return False


def gloo_enabled() -> bool:
    """Whether messages go over sockets, as scripts mean by this name: always True."""
    return True


def gloo_built() -> bool:
    """Whether messages can go over sockets: always True."""
    return True


def nccl_built() -> int:
    """The version of NCCL in use: 0, because no operation here uses NCCL."""
    return 0


def ddl_built() -> bool:
    """Whether IBM's DDL is built in: always False."""
    return False


def ccl_built() -> bool:
    """Whether oneCCL is built in: always False."""
    return False


def cuda_built() -> bool:
    """Whether this torch is built for CUDA, so that tensors may be on a CUDA device."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Whether this torch is built for ROCm, so that tensors may be on a ROCm device."""
    return torch.version.hip is not None
