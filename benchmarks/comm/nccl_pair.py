# SPDX-License-Identifier: Apache-2.0
"""Connections of NCCL's network tables between two hosts of a bed: the ways to have them, and one run of
tests/comm/nccl_net/pair_main.cpp, whose processes call a table as NCCL does, on host memory.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agspeed import nccl, netbed

OURS, CONTROL = "agspeed", "control"
_ROOT = Path(__file__).resolve().parents[2]
_START_LIMIT_S, _TABLE, _NCCL_SOCKET = 30.0, 11, 0


@dataclass(frozen=True)
class Way:
    """A table, how many connections carry an operation (0: one per rail), and what the processes get told."""

    name: str
    is_ours: bool = False
    connections: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    over_mptcp: bool = False


WAYS: dict[str, Way] = {
    way.name: way
    for way in (
        Way(OURS, is_ours=True),
        Way(CONTROL, is_ours=True),
        Way("agspeed-integrity", is_ours=True, environment={"AGSPEED_COMM_MODE": "integrity"}),
        Way("agspeed-per-rail", is_ours=True, connections=0),
        Way("nccl"),
        Way("nccl-per-rail", connections=0),
        Way("nccl-threads", environment={"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "1"}),
        Way("nccl-mptcp", over_mptcp=True),
    )
}


@dataclass(frozen=True)
class Run:
    """Seconds of each operation but the first, and processor seconds of both ends together for all of them."""

    seconds: list[float]
    cpu_seconds: float


def find(name: str) -> Way:
    """The row called `name`. Raises ValueError when there is none."""
    if name not in WAYS:
        raise ValueError(f"unknown way {name!r}; known: {', '.join(WAYS)}")
    return WAYS[name]


def program() -> Path:
    """Of the built tree; RuntimeError where it is not built."""
    path = Path(os.environ.get("AGSPEED_BUILD_DIR", _ROOT / "build" / "dev")) / "tests/comm/nccl_net/comm_nccl_net_pair"
    if not path.exists():
        raise RuntimeError(f"{path} is not built: run make build")
    return path


def library(way: Way) -> Path:
    """What has the way's table. RuntimeError where there is none."""
    path = nccl.library() if way.is_ours else nccl.find_nccl()
    if path is None or not path.exists():
        raise RuntimeError(f"{way.name}: {path or 'libnccl.so.2'} is not there")
    return path


def run(bed: netbed.Netbed, way: Way, num_bytes: int, messages: int, seconds: float, told: Mapping[str, str]) -> Run:
    """Operations one after another from host 0 to host 1; the last is compared. RuntimeError: what a process said."""
    rails = [rail.name for rail in bed.hosts[0].rails]
    used = rails[:1] if not way.is_ours and way.connections == 1 else rails
    meet = bed.scratch / f"meet-{time.monotonic_ns()}"
    table = _TABLE if way.is_ours else _NCCL_SOCKET
    words = [meet, library(way), table, way.connections or len(rails), num_bytes, messages, seconds, 0]
    names = ",".join(used)
    environment = {**told, "AGSPEED_SOCKET_IFNAME": names, "NCCL_SOCKET_IFNAME": names, **way.environment}
    found: dict[int, dict[str, Any]] = {}

    def on_line(host: int, line: str) -> None:
        if line.startswith("{"):
            found[host] = json.loads(line)

    command = [str(program())]
    jobs = [
        bed.start([*command, role, *map(str, words)], env=environment, hosts=[host], on_line=on_line)
        for host, role in enumerate(("send", "receive"))
    ]
    outcomes = [outcome for job in jobs for outcome in job.wait(seconds + _START_LIMIT_S)]
    if bad := [outcome.failure() for outcome in outcomes if outcome.code != 0]:
        raise RuntimeError(f"{way.name}: {bad[0]}")
    if wrong := found[1]["wrong_bytes"]:
        raise RuntimeError(f"{way.name}: {wrong} bytes came wrong")
    return Run(found[0]["seconds"][1:] or found[0]["seconds"], sum(each["cpu_seconds"] for each in found.values()))
