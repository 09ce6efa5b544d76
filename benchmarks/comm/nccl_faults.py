# SPDX-License-Identifier: Apache-2.0
"""Link faults while operations pass through agspeed's network table from host 0 to host 1.

Measures how many bytes arrive wrong, and by how much the most delayed operation is delayed. A fault strikes a random
rail, lasts for a while and ends. It strikes again until the operations are done. All rails are intact for a while
between two strikes.
"""

import random
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from agspeed import netbed
from benchmarks.comm import nccl_programs

_LASTS_S, _SILENT_S, _WHOLE_S = (0.4, 0.9), (0.8, 1.4), (0.5, 0.9)
_FLAPS, _FLAP_S = 10, 0.05
CARRIER_MS, SILENT_MS = 200.0, 600.0


@dataclass(frozen=True)
class Fault:
    """A kind of fault. `strike` applies it to a rail and returns when it has passed, or early once the event is set.

    `limit_ms` is the limit for the stall; None without a fault.
    """

    name: str
    host: int
    limit_ms: float | None
    strike: Callable[[netbed.Rail, random.Random, threading.Event], None]


def _cut(at: Literal["host", "switch"], rail: netbed.Rail, chance: random.Random, ended: threading.Event) -> None:
    rail.down(at)
    ended.wait(chance.uniform(*_LASTS_S))
    rail.up(at)


def _silence(direction: Literal["in", "out"], rail: netbed.Rail, chance: random.Random, ended: threading.Event) -> None:
    rail.drop(direction)
    ended.wait(chance.uniform(*_SILENT_S))
    rail.heal()


def _flap(rail: netbed.Rail, chance: random.Random, ended: threading.Event) -> None:
    for _ in range(_FLAPS):
        rail.down()
        ended.wait(_FLAP_S)
        rail.up()
        ended.wait(_FLAP_S)


def _nothing(rail: netbed.Rail, chance: random.Random, ended: threading.Event) -> None:
    ended.wait(_WHOLE_S[1])


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("none", 0, None, _nothing),
        Fault("cut at the sender", 0, CARRIER_MS, partial(_cut, "host")),
        Fault("cut at the receiver", 1, CARRIER_MS, partial(_cut, "host")),
        Fault("no carrier at the sender", 0, CARRIER_MS, partial(_cut, "switch")),
        Fault("no carrier at the receiver", 1, CARRIER_MS, partial(_cut, "switch")),
        Fault("silent to the receiver", 1, SILENT_MS, partial(_silence, "in")),
        Fault("silent from the receiver", 1, SILENT_MS, partial(_silence, "out")),
        Fault("flapping at the sender", 0, CARRIER_MS, _flap),
        Fault("flapping at the receiver", 1, CARRIER_MS, _flap),
    )
}


@dataclass(frozen=True)
class Outcome:
    """The seconds of each operation but the first, the number of wrong bytes, and how often the fault struck."""

    seconds: list[float]
    wrong_bytes: int
    strikes: int


def run(
    bed: netbed.Netbed, fault: Fault, num_bytes: int, operations: int, seed: int, variables: Mapping[str, str]
) -> Outcome:
    """Runs at least `operations`, and goes on until there was time for two strikes.

    Raises RuntimeError with the error text of a process that fails.
    """
    chance, ended, strikes = random.Random(seed), threading.Event(), 0

    def disturb() -> None:
        nonlocal strikes
        while not ended.wait(chance.uniform(*_WHOLE_S)):
            fault.strike(chance.choice(bed.hosts[fault.host].rails), chance, ended)
            strikes += 1

    striker, way = threading.Thread(target=disturb), nccl_programs.find(nccl_programs.OURS)
    seconds = 2 * (_WHOLE_S[1] + _SILENT_S[1])
    try:
        found = nccl_programs.checked_pair(
            bed,
            way,
            num_bytes,
            operations + 1,  # the first one, which connects, is left out
            seconds,
            variables,
            on_ready=striker.start,
        )
    finally:
        ended.set()
        if striker.ident is not None:
            striker.join()
    return Outcome(found[0]["seconds"][1:], found[1]["wrong_bytes"], strikes)


def measure(
    bed: netbed.Netbed, case: Mapping[str, Any], num_bytes: int, variables: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Returns a row for each fault, from as many runs as the case says. Each run has a seed of its own."""
    rows = []
    for fault in FAULTS.values():
        rows.append(
            row(fault, [run(bed, fault, num_bytes, case["count"], seed, variables) for seed in range(case["runs"])])
        )
    return rows


def row(fault: Fault, runs: Sequence[Outcome]) -> dict[str, Any]:
    """The row of a fault, over all its runs. The stall of a run is its longest operation minus its median operation."""
    medians = [1e3 * statistics.median(each.seconds) for each in runs]
    longest = [1e3 * max(each.seconds) for each in runs]
    return {
        "fault": fault.name,
        "limit_ms": fault.limit_ms,
        "operations": sum(len(each.seconds) for each in runs),
        "strikes": sum(each.strikes for each in runs),
        "wrong_bytes": sum(each.wrong_bytes for each in runs),
        "median_ms": statistics.median(medians),
        "stalls_ms": [most - usual for most, usual in zip(longest, medians, strict=True)],
    }
