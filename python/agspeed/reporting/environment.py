# SPDX-License-Identifier: Apache-2.0
"""Collects the conditions of a run: versions, machine, threads, command. The report's header and `agspeed doctor` use
them.

Nothing here imports torch. Its figures are read only if the process has already loaded it, so that describing a machine
is cheap and works without torch.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import itertools
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

from agspeed.reporting import secrets

__all__ = [
    "available_bytes",
    "command",
    "cores",
    "cpu_name",
    "describe",
    "isa",
    "machine",
    "memory_bytes",
    "threads",
    "versions",
]

_PACKAGES = ("agspeed", "torch", "numpy")
_TORCHRUN = ("GROUP_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
# Widest first: the instruction set is the first one of whose flags none is missing.
_ISA_FLAGS = (
    ("avx512_bf16", ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16")),
    ("avx512", ("avx512f", "avx512bw", "avx512dq", "avx512vl")),
    ("avx2", ("avx2", "fma")),
    ("avx", ("avx",)),
)


def describe() -> dict[str, Any]:
    """Returns the part of the report's header that does not depend on a session."""
    rank = os.environ.get("RANK", "")
    world_size = os.environ.get("WORLD_SIZE", "")
    return {
        "created_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "machine": machine(),
        "threads": threads(),
        "rank": int(rank) if rank.isdigit() else None,
        "world_size": int(world_size) if world_size.isdigit() else 1,
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    agspeed = sys.modules.get("agspeed")
    found.setdefault("agspeed", str(getattr(agspeed, "__version__", "unknown")))
    return dict(sorted(found.items()))


def machine() -> dict[str, Any]:
    return {
        "cpu": cpu_name(),
        "isa": isa(),
        "cores": cores(),
        "memory_bytes": memory_bytes(),
        "os": platform.platform(terse=True),
        "accelerators": _accelerators(),
    }


def threads() -> dict[str, int]:
    """Returns torch's thread counts; before torch is loaded, the number of cores this process may use."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_num_threads"):
        return {"intra_op": cores(), "inter_op": cores()}
    return {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads()}


def cores() -> int:
    """Returns the number of cores this process may run on (its affinity), which may be fewer than the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """Returns the memory this process may use: the machine's or its control group's, whichever is smaller."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    return min(total, int(limit)) if limit.isdigit() else total


def cpu_name() -> str:
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def isa() -> str:
    """Returns the vector instruction set that matters for kernels, such as avx512, avx2 or neon; else the machine's
    architecture."""
    flags = set(_cpuinfo().get("flags", "").split())
    for name, needed in _ISA_FLAGS:
        if flags.issuperset(needed):
            return name
    return "neon" if platform.machine() in ("aarch64", "arm64") else platform.machine()


def command() -> str:
    """Returns the command line that started this process, for a shell, with secrets masked. For a rank of torchrun it
    is torchrun's command line."""
    arguments = secrets.masked(sys.orig_argv or [sys.executable, *sys.argv])
    if not os.environ.keys() >= set(_TORCHRUN):
        return shlex.join(arguments)
    program = itertools.dropwhile(lambda word: word.startswith("-") and word != "-m", arguments[1:])
    return shlex.join(
        ["torchrun", f"--nproc-per-node={os.environ['LOCAL_WORLD_SIZE']}", *_rendezvous_options(), *program]
    )


def _rendezvous_options() -> list[str]:
    """Returns torchrun's rendezvous options for this node."""
    nodes, node, host, port = (os.environ[name] for name in _TORCHRUN[:4])
    if nodes == "1":
        return ["--standalone"]
    return [f"--nnodes={nodes}", f"--node-rank={node}", f"--master-addr={host}", f"--master-port={port}"]


def _accelerators() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def available_bytes() -> int | None:
    """Returns the bytes of memory that new programs may use; None if the system does not say."""
    lines = (line.split() for line in _read("/proc/meminfo").splitlines())
    return next((int(words[1]) << 10 for words in lines if words[:1] == ["MemAvailable:"]), None)


def _cpuinfo() -> dict[str, str]:
    """Returns the first processor's block of /proc/cpuinfo."""
    block = _read("/proc/cpuinfo").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
