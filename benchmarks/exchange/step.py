# SPDX-License-Identifier: Apache-2.0
"""The bytes on the interfaces, and the seconds, of whole steps of DistributedDataParallel, in several ways.

A way is a side, and a codec or none. Codecs run on the last side of agspeed that the case names. The baseline is the
fastest way of another backend. Ratios compare a way with the baseline, and the control with agspeed.
"""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.comm import sides
from benchmarks.comm.blocks import Block
from benchmarks.comm.contest import Contest
from benchmarks.exchange import contents
from benchmarks.horovod import gradient_sets
from benchmarks.measure.statistics import median_estimate

_DENSE = ""
_BLOCK_SECONDS, _MOST_STEPS = 1.0, 8
_ROUNDING = 1e-5
"""The relative error of dense ways is less, and that of lossy ones is more."""

Way = tuple[str, str]
"""Side and codec; "": none."""
OURS: Way = (sides.OURS, _DENSE)
Traffic = list[tuple[int, int]]
"""Bytes that each host sent and received, headers included."""


@dataclass(frozen=True)
class Counted(Block):
    """A block of steps. `codes` has the bytes of values that all ranks coded, and the bytes of their codes."""

    traffic: Traffic
    codes: tuple[int, int]


@dataclass(frozen=True)
class _Opened:
    """A way that is ready: its bucket cap, the bytes and error of its first gradients, and the seconds of a step."""

    bucket_mb: float
    first: Mapping[str, Any]
    seconds: float


def measure(contest: Contest, case: Mapping[str, Any], sizes: Sequence[int], seconds: float) -> dict[str, Any]:
    """Times each workload for `seconds`. At most about `sizes[0]` bytes of a set's gradients are exchanged."""
    rows = []
    for workload in case["workloads"]:
        opening: dict[str, Any] = {"workload": workload}
        num_bytes = 0
        if workload in gradient_sets.names():
            made = contents.write(workload, len(contest.bed.hosts), sizes[0], Path(case["folder"]))
            opening, num_bytes = {"layers": made.layers, "files": made.files}, made.bytes
        described = {"workload": workload, "rates": ", ".join(case["rates"])}
        rows += [described | scaled(each, num_bytes) for each in _rows(contest, case, opening, seconds)]
    return {"exchanges": rows}


def ways(names: Sequence[str], codecs: Sequence[str]) -> list[Way]:
    """The ways of these sides, dense ones first."""
    ours = [name for name in names if sides.find(name).backend == sides.OURS and name != sides.CONTROL]
    return [(name, _DENSE) for name in names] + [(ours[-1], codec) for codec in codecs]


def _rows(
    contest: Contest, case: Mapping[str, Any], opening: Mapping[str, Any], seconds: float
) -> list[dict[str, Any]]:
    """The rows of one workload, by way."""
    opened: dict[Way, _Opened] = {}
    for way in ways(list(contest.teams), case["codecs"]):
        caps = case["bucket_mb"].get(way[0], [0])
        if way[0] in contest.teams and (ready := contest.attempt(way[0], partial(_open, contest, way, opening, caps))):
            opened[way] = ready
    opened = {way: ready for way, ready in opened.items() if way[0] in contest.teams}
    check({way: ready.first for way, ready in opened.items()})
    count = block_steps(opened[OURS].seconds)
    found = contest.take_turns({way: partial(_counted, contest, way, count) for way in opened}, seconds)
    check_bits({way: set(contest.teams[way[0]].ask("exchange.ranks.digest", codec=way[1])) for way in opened})
    for team in contest.teams.values():
        team.ask("exchange.ranks.close")
    return [
        {
            "exchanged_mb": ready.first["bytes"] / 1e6,
            "bucket_mb": ready.bucket_mb,
            "error": ready.first["error"],
            **row(way, found),
        }
        for way, ready in opened.items()
    ]


def row(way: Way, found: Mapping[Way, Sequence[Counted]]) -> dict[str, Any]:
    """One way's figures: seconds of a step, the bytes of a host in it, and how it compares with another way."""
    over = OURS if way[0] == sides.CONTROL else baseline(found)
    mine, others = _seconds(found[way]), _seconds(found[over])
    sent, received = (mb_per_step(found[way], direction) for direction in range(2))
    values, codes = (sum(block.codes[at] for block in found[way]) for at in range(2))
    return {
        "way": name_of(way),
        "steps": len(mine),
        "seconds": median_estimate(mine).to_dict(),
        "sent_mb": sent,
        "received_mb": received,
        "over": name_of(over),
        "speed": median_estimate([other / own for other, own in zip(others, mine, strict=True)]).to_dict(),
        "fewer_bytes": mb_per_step(found[over], 0)["mean"] / sent["mean"],
        "values_per_code": values / codes if codes else None,
        "cpu_seconds": statistics.fmean(block.cpu_seconds_per_operation for block in found[way]),
    }


def scaled(found: Mapping[str, Any], num_bytes: int) -> dict[str, Any]:
    """Adds the figures of all gradients of the model, in proportion to bytes. 0: they are what is exchanged."""
    factor = num_bytes / 1e6 / found["exchanged_mb"] if num_bytes else 1.0
    return {
        **found,
        "mb": factor * found["exchanged_mb"],
        "scaled_sent_mb": factor * found["sent_mb"]["mean"],
        "scaled_seconds": factor * found["seconds"]["value"],
    }


def name_of(way: Way) -> str:
    return " ".join(filter(None, way))


def mb_per_step(blocks: Sequence[Counted], direction: int) -> dict[str, float]:
    """The MB that a host sent (direction 0) or received (1) in a step: the mean of the hosts, and the most of any."""
    steps = sum(len(block.seconds) for block in blocks)
    by_host = zip(*(block.traffic for block in blocks), strict=True)
    hosts = [sum(each[direction] for each in host) / 1e6 / steps for host in by_host]
    return {"mean": statistics.fmean(hosts), "most": max(hosts)}


def baseline(found: Mapping[Way, Sequence[Block]]) -> Way:
    """The fastest way of another backend, or agspeed's own dense one if there is none."""
    others = [way for way in found if sides.find(way[0]).backend != sides.OURS]
    return min(others, key=lambda way: statistics.median(_seconds(found[way])), default=OURS)


def check(firsts: Mapping[Way, Mapping[str, Any]]) -> None:
    """Raises RuntimeError unless dense ways have the mean of all gradients, and lossy ways have changed it."""
    for way, first in firsts.items():
        if (way[1] == _DENSE) != (first["error"] < _ROUNDING):
            raise RuntimeError(f"{name_of(way)}: the relative error of the first step is {first['error']:.2g}")


def check_bits(digests: Mapping[Way, set[str]]) -> None:
    """Raises RuntimeError unless all ranks of a way have the same gradients after the same number of steps, and all
    dense ways of agspeed, too. A lossless code must not change a bit."""
    dense = [way for way in digests if way[1] == _DENSE and sides.find(way[0]).backend == sides.OURS]
    for group in (dense, *([way] for way in digests)):
        if len(set[str]().union(*(digests[way] for way in group))) != 1:
            raise RuntimeError(f"{', '.join(map(name_of, group))}: gradients differ after the last step")


def block_steps(seconds: float) -> int:
    """The steps of a block, for all ways: as many as agspeed's dense way does in about a second."""
    return max(1, min(_MOST_STEPS, round(_BLOCK_SECONDS / seconds)))


def _open(contest: Contest, way: Way, opening: Mapping[str, Any], caps: Sequence[float]) -> _Opened:
    """Opens the session of a way, with the bucket cap whose step is shortest."""
    tried = [_open_with(contest, way, opening, cap) for cap in caps]
    best = min(tried, key=lambda each: each.seconds)
    return best if best is tried[-1] else _open_with(contest, way, opening, best.bucket_mb)


def _open_with(contest: Contest, way: Way, opening: Mapping[str, Any], cap: float) -> _Opened:
    team, codec = contest.teams[way[0]], way[1]
    function = "exchange.ranks.open_gradients" if "files" in opening else "exchange.ranks.open_training"
    team.ask(function, codec=codec, bucket_mb=cap, **opening)
    first, *_ = team.ask("exchange.ranks.first_step", codec=codec)
    return _Opened(cap, first, _steps(contest, way, 1).seconds[0])


def _counted(contest: Contest, way: Way, count: int) -> Counted:
    traffic, codes = _traffic(contest), _codes(contest, way)
    block = _steps(contest, way, count)
    traffic = _since(_traffic(contest), traffic)
    [codes] = _since([_codes(contest, way)], [codes])
    return Counted(block.started, block.seconds, block.cpu_seconds, traffic, codes)


def _steps(contest: Contest, way: Way, count: int) -> Block:
    return contest.teams[way[0]].block("exchange.ranks.steps", codec=way[1], count=count)


def _traffic(contest: Contest) -> Traffic:
    return [
        (sum(rail.sent_bytes for rail in host), sum(rail.received_bytes for rail in host))
        for host in contest.bed.counters()
    ]


def _since(after: Traffic, before: Traffic) -> Traffic:
    return [(now[0] - then[0], now[1] - then[1]) for now, then in zip(after, before, strict=True)]


def _codes(contest: Contest, way: Way) -> tuple[int, int]:
    """The bytes of values, and of their codes, of all ranks of a side so far."""
    team = contest.teams[way[0]]
    if team.side.backend != sides.OURS:
        return 0, 0
    values, codes = (sum(each) for each in zip(*team.ask("gradients.bytes_of_codes"), strict=True))
    return values, codes


def _seconds(blocks: Sequence[Block]) -> list[float]:
    return list(itertools.chain.from_iterable(block.seconds for block in blocks))
