# SPDX-License-Identifier: Apache-2.0
"""Processes that take turns: one process and its children run at a time, and the others' clocks stand still."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measure.turns import Turn, take_turns

_TICKS = "import sys, time\nwhile True: print(time.monotonic(), flush=True); time.sleep(0.005)"


def _work(spec: dict[str, Any], turn: Turn) -> dict[str, Any]:
    """Works for ten turns of 50 ms, with a child that records when it runs."""
    with Path(spec["ticks"]).open("w") as ticks:
        child = subprocess.Popen([sys.executable, "-c", _TICKS], stdout=ticks)
    intervals = []
    for _ in range(10):
        begun = time.monotonic()
        while time.monotonic() - begun < 0.055:
            pass
        intervals.append((begun, time.monotonic()))
        turn.border()
    child.kill()
    child.wait()
    return {"name": spec["name"], "intervals": intervals}


def test_one_works_while_the_others_stand_still(tmp_path: Path) -> None:
    specs = [{"name": name, "ticks": str(tmp_path / name)} for name in ("a", "b", "c")]
    results = take_turns(_work, specs, seconds=0.05)
    assert [result["name"] for result in results] == ["a", "b", "c"]
    own = {result["name"]: result["intervals"] for result in results}
    every = sorted(interval for intervals in own.values() for interval in intervals)
    assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(every)), every
    for result in results:
        ticks = [float(line) for line in (tmp_path / result["name"]).read_text().splitlines()]
        others = [interval for name, intervals in own.items() if name != result["name"] for interval in intervals]
        late = [tick for tick in ticks if any(begin + 0.03 < tick < end for begin, end in others)]
        assert ticks and not late, f"the child of {result['name']} ran in the turns of others: {late}"


class _Others:
    """The other processes, as `Turn` sees them: each message that this process awaits takes them five seconds."""

    def __init__(self) -> None:
        self.now, self.num_turns = 100.0, 0

    def send(self, message: None) -> None:
        self.num_turns += 1

    def recv(self) -> None:
        self.now += 5.0


def test_the_clock_stands_still_in_the_turns_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    others = _Others()
    monkeypatch.setattr(time, "perf_counter", lambda: others.now)
    turn = Turn(others, seconds=0.5)  # type: ignore[arg-type]
    seen = []
    for _ in range(4):
        others.now += 0.3
        turn.border()
        seen.append(time.perf_counter())
    assert seen == pytest.approx([100.3, 100.6, 100.9, 101.2])
    assert others.num_turns == 2, "a turn lasts half a second at least"


def _die(spec: str, turn: Turn) -> None:
    while spec == "lives":
        turn.border()
    os._exit(7)


def test_a_process_that_dies_is_reported_and_the_others_are_ended() -> None:
    with pytest.raises(RuntimeError, match="ended with status 7"):
        take_turns(_die, ["lives", "dies"], seconds=0.01)
