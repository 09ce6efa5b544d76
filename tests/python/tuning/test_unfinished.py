# SPDX-License-Identifier: Apache-2.0
"""The state that an unfinished tuning leaves behind, and its use by a later process.

The tuner and the database are real; regions and their outcomes are simulated.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agspeed import config
from agspeed.regions.outcome import Outcome
from agspeed.tuning.decision_store import DecisionStore
from agspeed.tuning.unfinished import FORMAT, UnfinishedTuning

native = pytest.importorskip("agspeed._native", reason="agspeed._native is not built")

KEY = {"graph": "g", "shapes": [], "dtypes": [], "device": "cpu", "threads": 1, "isa": "avx2", "versions": {}}
FINDINGS = {"version": 1, "arms": [{"name": "native", "verdict": "open", "pairs": [[10, 9, 10, 9]] * 6}]}


class Process:
    """One of several processes that tune a model in turn: its tuner, its regions and its stored state."""

    def __init__(self, folder: Path, *keys: str) -> None:
        self.store = DecisionStore(config.resolve({"cache_dir": folder}), KEY)
        self.regions = [SimpleNamespace(key=key, outcomes={}) for key in keys]
        self.tuner = native.Tuner({"mode": "max", "arms": ["native", "aot"]})
        session: Any = SimpleNamespace(regions=self.regions, history=SimpleNamespace(capture_seconds=0.5))
        self.unfinished = UnfinishedTuning(session)
        self.unfinished.begin(self.tuner, self.store, self.store.find())
        self.tuner.advance()
        self.tuner.capture_finished(0.5)
        self.unfinished.recall()
        self.unfinished.resume()

    @property
    def resumed(self) -> int:
        return int(self.tuner.snapshot()["resumed_pairs"])

    def refuse(self, region: int, name: str, **found: Any) -> None:
        self.regions[region].outcomes[name] = Outcome(name, "rejected", "off by 3", **found)
        self.unfinished.touch()


def _left_behind(folder: Path, keys: list[str], **changed: Any) -> None:
    body = {"format": FORMAT, "regions": keys, "tuner": FINDINGS, "refusals": [], **changed}
    store = DecisionStore(config.resolve({"cache_dir": folder}), KEY)
    assert store.store_unfinished({"arm": "", "unfinished": body})


def test_pairs_count_once_the_same_regions_are_captured(tmp_path: Path) -> None:
    _left_behind(tmp_path, ["a", "b"])
    assert Process(tmp_path, "b", "a").resumed == 6
    assert Process(tmp_path, "a", "c").resumed == 0
    growing = Process(tmp_path, "a")
    assert growing.resumed == 0
    growing.regions.append(SimpleNamespace(key="b", outcomes={}))
    growing.tuner.capture_grew()
    growing.unfinished.resume()
    assert growing.resumed == 6


def test_refusals_are_written_at_once_and_recalled_for_the_same_region_only(tmp_path: Path) -> None:
    first = Process(tmp_path, "a", "b")
    first.refuse(0, "aot", gate={"verdict": "rejected"})
    first.unfinished.keep()
    second = Process(tmp_path, "b", "a")
    assert not second.regions[0].outcomes
    (recalled,) = second.regions[1].outcomes.values()
    assert (recalled.candidate, recalled.state) == ("aot", "rejected")
    assert recalled.reason == "off by 3 (found in an earlier run)" and recalled.gate["verdict"] == "rejected"
    second.refuse(0, "native")
    second.unfinished.keep()
    third = Process(tmp_path, "a", "b")
    assert third.regions[0].outcomes["aot"].reason == recalled.reason
    assert third.regions[1].outcomes["native"].gate == {}


def test_pairs_that_cannot_be_taken_up_yet_outlive_a_process_that_knows_less(tmp_path: Path) -> None:
    _left_behind(tmp_path, ["a", "b"])
    shorter = Process(tmp_path, "a")
    shorter.refuse(0, "aot")
    shorter.unfinished.keep(at_once=True)
    assert Process(tmp_path, "a", "b").resumed == 6


def test_a_decision_ends_it_and_is_never_overwritten(tmp_path: Path) -> None:
    process = Process(tmp_path, "a")
    process.store.store({"arm": "native"})
    process.refuse(0, "aot")
    process.unfinished.keep(at_once=True)
    assert process.store.find() == {"arm": "native"}
    process.unfinished.end()
    assert "nothing could be kept" in process.unfinished.describe()


def test_writing_waits_for_its_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(tmp_path, "a")
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    written: list[float] = []

    def write(record: dict[str, Any]) -> bool:
        written.append(now[0])
        now[0] += 0.05
        return True

    monkeypatch.setattr(process.store, "store_unfinished", write)
    findings = iter(range(1, 10**6))
    fake = SimpleNamespace(findings=process.tuner.findings, paused=process.tuner.paused)
    monkeypatch.setattr(process.unfinished, "_tuner", fake)
    while now[0] < 120.0:
        fake.num_findings = next(findings)
        process.unfinished.keep()
        now[0] += 0.01
    assert 3 <= len(written) <= 5, written
    assert process.tuner.snapshot()["ledger"]["foreground_seconds"] == pytest.approx(0.5 + 0.05 * len(written))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"format": 99}, "format 99"),
        ({"format": None}, "format None"),
        ({"regions": [1]}, "lacks the pairs"),
        ({"tuner": []}, "lacks the pairs"),
        ({"tuner": {"arms": [{"name": "native", "pairs": 3}]}}, "an arm lacks its pairs"),
        ({"tuner": {"arms": [{"name": "native", "pairs": [], "duel": 3}]}}, "an arm lacks its pairs"),
        ({"tuner": {**FINDINGS, "version": 2}}, "reads version 1"),
        ({"tuner": {"version": 1, "arms": [{"name": "native", "pairs": [[1, 2]]}]}}, "not four times"),
        ({"refusals": [{"region": "a"}]}, "a refusal without"),
        ({"refusals": [{"region": "a", "candidate": "aot", "reason": "", "state": "ready"}]}, "a refusal without"),
    ],
)
def test_a_record_of_another_format_is_ignored_with_the_reason(
    changed: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    _left_behind(tmp_path, ["a"], **changed)
    process = Process(tmp_path, "a")
    assert process.resumed == 0 and not process.regions[0].outcomes
    assert process.unfinished.note is not None and reason in process.unfinished.note
    process.refuse(0, "aot")
    process.unfinished.keep()
    stored = process.store.find()
    assert stored is not None and json.dumps(stored["unfinished"]).count('"aot"') == 1


# --- shortages of the machine -----------------------------------------------------------------------------------------

FULL = "compile failed with OSError: [Errno 28] No space left on device"


def test_what_the_machine_lacked_is_not_kept_as_a_refusal(tmp_path: Path) -> None:
    first = Process(tmp_path, "a")
    first.regions[0].outcomes["aot"] = Outcome("aot", "failed", FULL)
    first.refuse(0, "native")
    first.unfinished.keep(at_once=True)
    assert set(Process(tmp_path, "a").regions[0].outcomes) == {"native"}


def test_an_older_record_of_what_the_machine_lacked_counts_no_more(tmp_path: Path) -> None:
    refusal = {"region": "a", "candidate": "aot", "state": "failed", "reason": FULL, "wrong": False}
    _left_behind(tmp_path, ["a"], refusals=[refusal])
    assert Process(tmp_path, "a").regions[0].outcomes == {}


def test_a_decision_that_rests_on_it_leaves_what_was_measured(tmp_path: Path) -> None:
    _left_behind(tmp_path, ["a"])
    process = Process(tmp_path, "a")
    process.unfinished.end(f"aot {FULL}")
    assert process.unfinished.is_passing and "No space left" in process.unfinished.note
    assert Process(tmp_path, "a").resumed == 6
    decided = Process(tmp_path, "a")
    decided.unfinished.end()
    assert decided.unfinished.note is None and not decided.unfinished.is_passing
