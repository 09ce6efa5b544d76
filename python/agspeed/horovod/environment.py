# SPDX-License-Identifier: Apache-2.0
"""Reads the environment: the rank of this process, from any launcher's variables, and Horovod's settings.

The module needs neither torch nor the native extension.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from agspeed.errors import UserError
from agspeed.horovod import kubeflow
from agspeed.horovod.slurm import first_host, is_step, step_placement

__all__ = [
    # keep-sorted
    "DYNAMIC",
    "Options",
    "Placement",
    "options",
    "placement",
    "rendezvous_address",
    "top_k",
    "torchruns_variables",
    "without_effect",
]

_RANKS = (
    # rank, size, local rank, local size
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
)
_TORCHRUN, _OF_TORCHRUN = ("RANK", "WORLD_SIZE"), "TORCHELASTIC_RUN_ID"
# The names of a job by one launcher. mpirun starts only some of its ranks in a step of Slurm, so steps come last.
_JOBS = (("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"), ("PMI_JOBID",), ("SLURM_JOB_ID", "SLURM_STEP_ID"))
_FIRST_PORT, _NUM_PORTS = 20000, 12000
_MIB = 1 << 20

_WITHOUT_EFFECT = {
    "ready operations start at once": ("HOROVOD_CYCLE_TIME",),
    "algorithms follow from hosts and sizes": (
        "HOROVOD_HIERARCHICAL_ALLGATHER",
        "HOROVOD_HIERARCHICAL_ALLREDUCE",
        "HOROVOD_TORUS_ALLREDUCE",
        "LIGHT_2D_ALLREDUCE",
        "LIGHT_HIERARCHICAL_THRESHOLD",
        "PERSEUS_ALLREDUCE_MODE",
    ),
    "gradients keep their bits unless compression= says otherwise": ("PERSEUS_ALLREDUCE_DTYPE",),
    "top-k sends its values as float32": ("LIGHT_TOPK_FP16",),
    "HOROVOD_FUSION_THRESHOLD and HOROVOD_AUTOTUNE choose the fused operations": (
        "PERSEUS_ALLREDUCE_FUSION",
        "TIACC_TRAINING_FUSION_THRESHOLD",
    ),
    "the number of operations in flight follows from the ready operations": (
        "PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING",
        "PERSEUS_ALLREDUCE_STREAMS",
    ),
    "it does not exist here": (
        "HOROVOD_NUM_NCCL_STREAMS",
        "HOROVOD_THREAD_AFFINITY",
        "PERSEUS_ALLREDUCE_NANCHECK",
        "TIACC_TRAINING_NUM_NCCL_STREAMS",
    ),
}
"""Maps a reason to the variables without effect here. They belong to Horovod and to products that accelerate it."""
DYNAMIC = "DYNAMIC"
"""Value of HOROVOD_TIMELINE: the job starts without a timeline, and start_timeline() may begin one."""
_UNSET = ("", "0")
_LIGHT_OPTIONS = ("LIGHT_TOPK_RATIO", "LIGHT_TOPK_THRESHOLD")
_ORDERS = ("time", "size", "priority", "model")


@dataclass(frozen=True)
class Placement:
    """The place of this process in the job (rank, size) and on its host (local).

    The cross rank is the number of its host among the hosts that have a rank with its local rank.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def placement(environ: Mapping[str, str] = os.environ) -> Placement:
    """Reads HOROVOD_*, torchrun's, Open MPI's, PMI's, MVAPICH2's, Slurm's or Kubeflow's variables. Without any, this
    process is the only rank.

    Raises: RuntimeError if only one of a rank and its size is set. UserError for a value that is not a valid number,
    and for variables that contradict each other.
    """
    for names in _RANKS:
        rank_name, size_name, _, local_size_name = names
        if (rank_name in environ) != (size_name in environ):
            there, lacking = (rank_name, size_name) if rank_name in environ else (size_name, rank_name)
            raise RuntimeError(f"{there} is set and {lacking} is not: a launcher sets both; set it or unset {there}.")
        if rank_name not in environ:
            continue
        rank, size = _rank_of(environ, rank_name, size_name)
        # srun's own PMI, and scripts that copy srun's variables, leave the local ones out. `torchruns_variables` copies
        # all, and only srun's own say which hosts have fewer ranks.
        is_copy = names[:2] == _TORCHRUN and _OF_TORCHRUN not in environ
        if is_step(environ) and (is_copy or local_size_name not in environ):
            step = Placement(*step_placement(environ))
            local_size = environ.get(local_size_name, str(step.local_size))
            if (rank, size, local_size) == (step.rank, step.size, str(step.local_size)):
                return step
        if (rank_name, size_name) == _TORCHRUN and _OF_TORCHRUN not in environ:
            _check_others(environ, rank, size)
            if kubeflow.is_pod(environ):
                kubeflow.check_is_rank(environ)
                return Placement(rank, size, 0, 1, rank, size)
        return _with_local_ranks(environ, rank, size, names)
    if is_step(environ):
        return Placement(*step_placement(environ))
    if kubeflow.is_pod(environ):
        rank, size = kubeflow.pod_placement(environ)
        return Placement(rank, size, 0, 1, rank, size)
    if "PMIX_RANK" in environ:
        raise UserError(
            f"PMIX_RANK={environ['PMIX_RANK']} is set, and no variable says how many ranks there are: set RANK and "
            "WORLD_SIZE, or unset PMIX_RANK."
        )
    return Placement(0, 1, 0, 1, 0, 1)


def _rank_of(environ: Mapping[str, str], rank_name: str, size_name: str) -> tuple[int, int]:
    rank, size = _number(environ, rank_name), _number(environ, size_name)
    if not 0 <= rank < size:
        raise UserError(f"{rank_name}={rank} and {size_name}={size}: a rank is a number from 0 to the size minus 1.")
    return rank, size


def _with_local_ranks(environ: Mapping[str, str], rank: int, size: int, names: tuple[str, str, str, str]) -> Placement:
    """Adds the place on the host. Without the launcher's variables for it, LIGHT_INTRA_SIZE is the number of ranks on a
    host; without that, all ranks are on one host."""
    _, size_name, local_rank_name, local_size_name = names
    if local_size_name in environ:
        local_size = _number(environ, local_size_name)
    else:
        local_size = min(_number(environ, "LIGHT_INTRA_SIZE", size) or size, size)
    if not 1 <= local_size <= size:
        raise UserError(f"{local_size_name}={local_size} and {size_name}={size}: a host has 1 to all of the ranks.")
    local_rank = _number(environ, local_rank_name) if local_rank_name in environ else rank % local_size
    if local_rank >= local_size:
        raise UserError(
            f"{local_rank_name}={local_rank} and {local_size_name}={local_size}: a local rank is less than the local "
            "size."
        )
    cross_size = _number(environ, "HOROVOD_CROSS_SIZE") if "HOROVOD_CROSS_SIZE" in environ else -(-size // local_size)
    cross_rank = _number(environ, "HOROVOD_CROSS_RANK") if "HOROVOD_CROSS_RANK" in environ else rank // local_size
    return Placement(rank, size, local_rank, local_size, cross_rank, cross_size)


def _check_others(environ: Mapping[str, str], rank: int, size: int) -> None:
    """Raises: UserError if RANK is another one than the rank of an MPI job of the same size.

    A job of another size may have started this one.
    """
    for rank_name, size_name, *_ in _RANKS:
        if not rank_name.startswith(("OMPI_", "PMI_", "MV2_")) or not {rank_name, size_name} <= environ.keys():
            continue
        other = _rank_of(environ, rank_name, size_name)
        if other[1] == size and other[0] != rank:
            raise UserError(
                f"RANK={rank} and {rank_name}={other[0]}, both of {size}, contradict each other: unset RANK and "
                "WORLD_SIZE, so that each rank of mpirun has its own number."
            )


def rendezvous_address(where: Placement, environ: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Returns the address and port at which the ranks find each other.

    The launcher's MASTER_ADDR and MASTER_PORT come first, then Kubeflow's PET_MASTER_ADDR and PET_MASTER_PORT. Without
    both, the address is loopback for a job on one host, else MASTER_ADDR, or the first host of a step whose tasks are
    the ranks. The port is MASTER_PORT, or a hash of the job's number under mpirun or srun.

    Raises: UserError if there is no address or no port.
    """
    for address, port in (("MASTER_ADDR", "MASTER_PORT"), kubeflow.ADDRESS):
        if address in environ and port in environ:
            return environ[address], _number(environ, port)
    known = ([f"{name}={environ[name]}" for name in names if name in environ] for names in _JOBS)
    job = next(filter(None, known), [])
    host = "127.0.0.1" if where.local_size == where.size else environ.get("MASTER_ADDR", "")
    if not host and is_step(environ) and step_placement(environ)[:2] == (where.rank, where.size):
        host = first_host(environ)
    if host and "MASTER_PORT" in environ:
        return host, _number(environ, "MASTER_PORT")
    if not host or not job:
        raise UserError(
            f"rank {where.rank} of {where.size} does not know where to find the others: set MASTER_ADDR to the name of "
            "rank 0's host and MASTER_PORT to a free port there, the same at all ranks."
        )
    return host, _FIRST_PORT + zlib.crc32(" ".join(job).encode()) % _NUM_PORTS


def torchruns_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the variables that torchrun would set in this process. Empty if it has RANK or WORLD_SIZE already, or if
    no launcher has started it.

    Raises: as placement() and rendezvous_address().
    """
    is_started = any(rank in environ for rank, *_ in _RANKS) or is_step(environ) or kubeflow.is_pod(environ)
    if not is_started or not environ.keys().isdisjoint(_TORCHRUN):
        return {}
    where = placement(environ)
    address, port = rendezvous_address(where, environ)
    return {
        "RANK": str(where.rank),
        "WORLD_SIZE": str(where.size),
        "LOCAL_RANK": str(where.local_rank),
        "LOCAL_WORLD_SIZE": str(where.local_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


@dataclass(frozen=True)
class Options:
    """Horovod's settings that have an effect here. A time of 0 seconds means never."""

    fusion_bytes: int
    is_fusion_given: bool
    fusion_order: str
    """The order in which ready operations run: see FusionOrder in comm/named/coordinator/fusion.h."""
    is_order_given: bool
    cache_capacity: int
    stall_warning: float
    stall_shutdown: float
    timeout: float
    are_process_sets_dynamic: bool
    is_elastic: bool
    timeline: str
    """A file's path, or "" for no timeline."""
    marks_cycles: bool
    is_tuned: bool
    autotune_log: str


def options(environ: Mapping[str, str] = os.environ) -> Options:
    """Reads the settings. Raises: UserError for values that are not numbers or make no sense."""
    is_checked = environ.get("HOROVOD_STALL_CHECK_DISABLE", "0") in ("", "0")
    warning = _seconds(environ, "HOROVOD_STALL_CHECK_TIME_SECONDS", 60) if is_checked else 0
    shutdown = _seconds(environ, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0) if is_checked else 0
    if 0 < shutdown < warning:
        raise UserError(
            f"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS={shutdown:g} must exceed "
            f"HOROVOD_STALL_CHECK_TIME_SECONDS={warning:g}."
        )
    order = environ.get("HOROVOD_FUSION_ORDER", "") or "time"
    if order not in _ORDERS:
        raise UserError(f"HOROVOD_FUSION_ORDER={order!r} is not valid: write one of {', '.join(_ORDERS)}.")
    timeline = environ.get("HOROVOD_TIMELINE", "")
    return Options(
        fusion_bytes=_number(environ, "HOROVOD_FUSION_THRESHOLD", 32 * _MIB),
        is_fusion_given=bool(environ.get("HOROVOD_FUSION_THRESHOLD", "")),
        fusion_order=order,
        is_order_given=bool(environ.get("HOROVOD_FUSION_ORDER", "")),
        cache_capacity=_number(environ, "HOROVOD_CACHE_CAPACITY", 1024),
        stall_warning=warning,
        stall_shutdown=shutdown,
        timeout=1800,
        are_process_sets_dynamic=environ.get("HOROVOD_DYNAMIC_PROCESS_SETS", "0") not in ("", "0"),
        is_elastic=environ.get("HOROVOD_ELASTIC", "0") not in ("", "0"),
        timeline=timeline if timeline != DYNAMIC else "",
        marks_cycles=environ.get("HOROVOD_TIMELINE_MARK_CYCLES", "0") not in ("", "0"),
        is_tuned=environ.get("HOROVOD_AUTOTUNE", "0") not in ("", "0"),
        autotune_log=environ.get("HOROVOD_AUTOTUNE_LOG", ""),
    )


class TopKOptions(NamedTuple):
    """What LIGHT_TOPK_* ask for."""

    density: float
    dense_below: int
    """The number of float32 values."""


def top_k(environ: Mapping[str, str] = os.environ) -> TopKOptions | None:
    """Returns the options of top-k if LIGHT_TOPK_ALLREDUCE switches it on, else None. Raises: UserError for values that
    make no sense."""
    if environ.get("LIGHT_TOPK_ALLREDUCE", "") in _UNSET:
        return None
    text = environ.get("LIGHT_TOPK_RATIO", "") or "0.01"
    try:
        density = float(text)
    except ValueError:
        density = 0
    if not 0 < density <= 1:
        raise UserError(f"LIGHT_TOPK_RATIO={text!r} is not valid: write the part of the values to send, in (0, 1].")
    return TopKOptions(density, _number(environ, "LIGHT_TOPK_THRESHOLD", _MIB) // 4)


def without_effect(environ: Mapping[str, str] = os.environ) -> str:
    """One sentence about the variables that are set without effect; empty if there are none."""
    reasons = []
    for reason, names in _WITHOUT_EFFECT.items():
        found = [name for name in names if environ.get(name, "") not in _UNSET]
        if found:
            reasons.append(f"{', '.join(found)} ({reason})")
    found = [name for name in _LIGHT_OPTIONS if environ.get(name, "") not in _UNSET]
    if found and top_k(environ) is None:
        reasons.append(f"{', '.join(found)} (LIGHT_TOPK_ALLREDUCE=1 switches top-k on)")
    return f"set, but without effect: {'; '.join(reasons)}." if reasons else ""


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "")
    if not text and default is not None:
        return default
    if not text.isdigit():
        raise UserError(f"{name}={text!r} is not valid: write a number, 0 or more.")
    return int(text)


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "")
    try:
        seconds = float(text or default)
    except ValueError:
        seconds = -1
    if seconds < 0:
        raise UserError(f"{name}={text!r} is not valid: write a number of seconds, 0 for never.")
    return seconds
