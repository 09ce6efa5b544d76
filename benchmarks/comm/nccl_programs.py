# SPDX-License-Identifier: Apache-2.0
"""Connections of NCCL's network tables between hosts of a bed: the ways to make them, and runs of the test programs.

The programs belong to tests/comm/nccl_net. Their processes call a table as NCCL does, on host memory.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agspeed import nccl, netbed

OURS, CONTROL = "agspeed", "control"
_BUILD = Path(os.environ.get("AGSPEED_BUILD_DIR", Path(__file__).resolve().parents[2] / "build" / "dev"))
_START_LIMIT_S, _TABLE, _NCCL_SOCKET = 30.0, 11, 0
_CHECKED_MESSAGES, _FAULTS_LIMIT_S = 4, 60.0
_LEAST_OPERATIONS = 2  # in a run: the first operation sets up


@dataclass(frozen=True)
class Way:
    """A table, the number of connections per operation (0: one per rail), and variables for the processes."""

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
    """The seconds of each operation but the first, and the processor seconds per operation, all ends together."""

    seconds: list[float]
    cpu_seconds: float


def find(name: str) -> Way:
    """Returns the row called `name`. Raises ValueError if there is none."""
    if name not in WAYS:
        raise ValueError(f"unknown way {name!r}; known: {', '.join(WAYS)}")
    return WAYS[name]


def program(name: str) -> Path:
    """Returns the path of a built program. Raises RuntimeError if it is not built."""
    path = _BUILD / "tests" / "comm" / "nccl_net" / f"comm_nccl_net_{name}"
    if not path.exists():
        raise RuntimeError(f"{path} is not built: run make build")
    return path


def library(way: Way) -> Path:
    """Returns the library with the way's table: agspeed's from the built tree or the package, or NCCL's. Raises
    RuntimeError if there is none.
    """
    path = nccl.library() if way.is_ours else nccl.find_nccl()
    if way.is_ours and (built := _BUILD / "comm" / "nccl_net" / nccl.library().name).exists():
        path = built
    if path is None or not path.exists():
        raise RuntimeError(f"{way.name}: {path or 'libnccl.so.2'} is not there")
    return path


def pair(
    bed: netbed.Netbed, way: Way, num_bytes: int, messages: int, seconds: float, variables: Mapping[str, str]
) -> Run:
    """Runs operations one after another from host 0 to host 1 and checks the last one.

    Raises RuntimeError with the error text of a process that fails.
    """
    ends = [["send"], ["receive"]]
    found = _run(bed, way, "pair", ends, [num_bytes, messages, seconds, _LEAST_OPERATIONS, 0], seconds, variables)
    if wrong := found[1]["wrong_bytes"]:
        raise RuntimeError(f"{way.name}: {wrong} bytes came wrong")
    return _summed(found)


def checked_pair(
    bed: netbed.Netbed,
    way: Way,
    num_bytes: int,
    operations: int,
    seconds: float,
    variables: Mapping[str, str],
    on_ready: Callable[[], None],
) -> list[dict[str, Any]]:
    """Like `pair`, but at least `operations` of four messages each, all of them checked. Returns both ends' output.

    `on_ready` is called on another thread once the two ends are connected.
    """
    what = [num_bytes, _CHECKED_MESSAGES, seconds, operations, 1]
    return _run(bed, way, "pair", [["send"], ["receive"]], what, seconds + _FAULTS_LIMIT_S, variables, on_ready)


def ring(
    bed: netbed.Netbed, way: Way, num_bytes: int, slices: int, seconds: float, variables: Mapping[str, str]
) -> Run:
    """Runs all-reduces around all hosts with `slices` in flight, and checks the last. Raises RuntimeError as `pair`
    does."""
    size = len(bed.hosts)
    ends = [[str(rank), str(size)] for rank in range(size)]
    found = _run(bed, way, "ring", ends, [num_bytes, slices, seconds, _LEAST_OPERATIONS], seconds, variables)
    if wrong := sum(each["wrong_values"] for each in found):
        raise RuntimeError(f"{way.name}: {wrong} sums are wrong")
    return _summed(found)


def _summed(found: list[dict[str, Any]]) -> Run:
    cpu_seconds = sum(each["cpu_seconds"] for each in found) / found[0]["operations"]
    return Run(found[0]["seconds"][1:], cpu_seconds)


def _run(
    bed: netbed.Netbed,
    way: Way,
    name: str,
    ends: Sequence[Sequence[str]],
    what: Sequence[object],
    seconds: float,
    variables: Mapping[str, str],
    on_ready: Callable[[], None] | None = None,
) -> list[dict[str, Any]]:
    """Runs a program and returns the output of each end. `ends` are the arguments that differ, by host."""
    rails = [rail.name for rail in bed.hosts[0].rails]
    used = rails[:1] if not way.is_ours and way.connections == 1 else rails
    rendezvous = bed.scratch / f"peer-{time.monotonic_ns()}"
    table = _TABLE if way.is_ours else _NCCL_SOCKET
    words = [str(each) for each in (rendezvous, library(way), table, way.connections or len(rails), *what)]
    names = ",".join(used)
    environment = {**variables, "AGSPEED_SOCKET_IFNAME": names, "NCCL_SOCKET_IFNAME": names, **way.environment}
    found: dict[int, dict[str, Any]] = {}

    def on_line(host: int, line: str) -> None:
        if line == "ready" and host == 0 and on_ready is not None:
            on_ready()
        elif line.startswith("{"):
            found[host] = json.loads(line)

    jobs = [
        bed.start([str(program(name)), *end, *words], env=environment, hosts=[host], on_line=on_line)
        for host, end in enumerate(ends)
    ]
    outcomes = [outcome for job in jobs for outcome in job.wait(seconds + _START_LIMIT_S)]
    if bad := [outcome.failure() for outcome in outcomes if outcome.code != 0]:
        raise RuntimeError(f"{way.name}: {bad[0]}")
    return [found[host] for host in range(len(ends))]
