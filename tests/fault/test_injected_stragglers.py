# SPDX-License-Identifier: Apache-2.0
"""Faults of four kinds are injected into one real job, one after another: their causes are named, and nothing else."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agspeed import native, netbed
from tests.fault import injected_program
from tests.fault.conftest import MakeNetbed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]
_SEED = int(os.environ.get("AG_TEST_SEED", "11"))
_KINDS = ("compute", "host", "input", "rail")
_NUM_FAULTS = int(os.environ.get("AG_TEST_FAULTS", "20"))
_MOST_MISSED = _NUM_FAULTS // 20
_HOSTS, _PER_HOST = 3, injected_program.RANKS_PER_HOST
_RATE, _SLOW_RATE = "50mbit", "15mbit"
_FIRST_ROUNDS, _QUIET_ROUNDS = 20, 12
_NAMED_WITHIN, _ENDED_WITHIN = 60, 80
_LONGEST_ROUND_S = 300
"""On a busy machine; a comparison takes a second or two."""


class _Job:
    """The job, as its rank 0 describes it."""

    def __init__(self, bed: netbed.Netbed, folder: Path) -> None:
        self._fault, self._news = folder / "fault", threading.Condition()
        self._verdict: dict[str, Any] = {"rounds": 0, "lasting": [], "ended": []}
        self.set_fault("", [])
        variables = {"OMP_NUM_THREADS": "1", "AGSPEED_COMPARE_RANKS_S": "0.5", "AGSPEED_WIRE_CODING": "off"}
        command = [sys.executable, injected_program.__file__, str(folder)]
        self._job = bed.start(command, env=variables, on_line=self._take)

    def set_fault(self, kind: str, ranks: list[int]) -> None:
        draft = self._fault.with_suffix(".draft")
        draft.write_text(json.dumps({"kind": kind, "ranks": ranks}))
        draft.replace(self._fault)

    def rounds(self, count: int, until: Callable[[dict[str, Any]], bool] = lambda verdict: False) -> dict[str, Any]:
        """Waits for `count` comparisons, or until a verdict fulfils `until`. Returns: the newest verdict."""
        with self._news:
            last = self._verdict["rounds"] + count
            while self._verdict["rounds"] < last and not until(self._verdict):
                before = self._verdict["rounds"]
                assert self._news.wait(_LONGEST_ROUND_S), f"no comparison after {before} in {_LONGEST_ROUND_S} s"
            return self._verdict

    def end(self) -> None:
        self.set_fault("stop", list(range(_HOSTS * _PER_HOST)))
        for outcome in self._job.wait(_LONGEST_ROUND_S):
            assert outcome.code == 0, outcome.output

    def _take(self, _: int, line: str) -> None:
        if line.startswith("{"):
            with self._news:
                self._verdict = json.loads(line)
                self._news.notify_all()


@pytest.mark.timeout(3600)
def test_nineteen_of_twenty_injected_faults_are_named_and_quiet_steps_give_no_line(
    make_netbed: MakeNetbed, tmp_path: Path
) -> None:
    chance, missed = random.Random(_SEED), []
    bed = make_netbed(hosts=_HOSTS, rails=2, rate=_RATE)
    job = _Job(bed, tmp_path)
    assert _found(job.rounds(_FIRST_ROUNDS)) == [], f"seed {_SEED}: a line in quiet steps"
    for number in range(_NUM_FAULTS):
        kind, rank = _KINDS[number % len(_KINDS)], chance.randrange(_HOSTS * _PER_HOST)
        host, before = rank // _PER_HOST, _found(job.rounds(0))
        rail = chance.choice(bed.hosts[host].rails)
        if kind == "rail":
            rail.set_rate(_SLOW_RATE)
        first = host * _PER_HOST
        job.set_fault(kind, [*range(first, first + _PER_HOST)] if kind == "host" else [rank])
        job.rounds(_NAMED_WITHIN, lambda verdict: bool(verdict["lasting"]))
        named = _found(job.rounds(2))[len(before) :]
        rail.set_rate(_RATE)
        job.set_fault("", [])
        job.rounds(_ENDED_WITHIN, lambda verdict: not verdict["lasting"])
        expected = {
            "compute": [("compute", rank, "", 1)],
            "host": [("host", first, "", _PER_HOST)],
            "input": [("input", rank, "", 1)],
            "rail": [("rail", each, rail.name, 1) for each in range(first, first + _PER_HOST)],
        }[kind]
        print(f"fault {number}: {expected}, named {named}", flush=True)
        if not named or not set(named) <= set(expected):
            missed.append((number, expected, named))
        after = _found(job.rounds(0))
        assert _found(job.rounds(_QUIET_ROUNDS)) == after, f"seed {_SEED}: a line in quiet steps after fault {number}"
    job.end()
    assert len(missed) <= _MOST_MISSED, f"seed {_SEED}: {missed}"


def _found(verdict: dict[str, Any]) -> list[tuple[str, int, str, int]]:
    """The findings so far, in the order of their begins. Each one has given a line."""
    both = [*verdict["ended"], *verdict["lasting"]]
    ordered = sorted(both, key=lambda each: (each["since_step"], each["kind"], each["rank"]))
    return [(each["kind"], each["rank"], each["rail"], each["num_ranks"]) for each in ordered]
