# SPDX-License-Identifier: Apache-2.0
"""The tuner and its database as seen from Python. tests/runtime/tune tests how well the tuner chooses."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

native = pytest.importorskip("agspeed._native", reason="agspeed._native is not built")

KEY = {
    "graph": "9c1f",
    "shapes": [[64, 784]],
    "dtypes": ["f32"],
    "device": "cpu",
    "threads": 2,
    "isa": "avx512",
    "versions": {"torch": "2.11.0"},
}
SEED = 5


def train(tuner: Any, seconds: dict[str, float], steps: int) -> list[dict[str, Any]]:
    """A minimal driver in which every compile succeeds at once. Returns all actions."""
    noise = random.Random(SEED)
    done = []
    for _ in range(steps):
        while True:
            actions = tuner.advance()
            done += actions
            for action in actions:
                if action["kind"] == "capture":
                    tuner.capture_finished(0.05)
                elif action["kind"] in ("compile", "load"):
                    state = "compiled" if action["kind"] == "compile" else "ready"
                    tuner.arm_changed(action["arm"], state, foreground_seconds=0.01)
            if not any(action["kind"] in ("capture", "load", "wait") for action in actions):
                break
        time = seconds[tuner.current] * noise.lognormvariate(0, 0.02)
        tuner.step_finished(tuner.current, time, shape="a", peak_bytes=100 << 20)
    return done


@pytest.mark.parametrize("mode", ["auto", "max", "fast-start"])
def test_chooses_the_fastest_arm(mode: str) -> None:
    tuner = native.Tuner({"mode": mode, "arms": ["native", {"name": "aot"}], "capture_seconds": 0.05})
    actions = train(tuner, {"eager": 0.01, "native": 0.007, "aot": 0.0095}, 3000)
    assert tuner.status == "tuned", f"seed {SEED}: {tuner.status_reason}"
    assert (tuner.current, tuner.phase) == ("native", "settled")
    decisions = [action for action in actions if action["kind"] == "decide"]
    assert [decision["arm"] for decision in decisions] == ["native"]
    assert "times eager's speed" in decisions[0]["reason"]


def test_stays_eager_and_silent_without_a_winner() -> None:
    tuner = native.Tuner({"mode": "max", "arms": ["native"]})
    train(tuner, {"eager": 0.01, "native": 0.01}, 2000)
    assert (tuner.status, tuner.current, tuner.quiet_steps) == ("eager", "eager", None)


def test_snapshot_is_plain_json_with_every_section() -> None:
    tuner = native.Tuner({"mode": "max", "arms": ["native", "aot"]})
    train(tuner, {"eager": 0.01, "native": 0.007, "aot": 0.02}, 1500)
    snapshot = tuner.snapshot()
    json.dumps(snapshot, allow_nan=False)
    assert snapshot["version"] == 1
    assert {arm["name"]: arm["verdict"] for arm in snapshot["arms"]} == {
        "eager": "accepted",
        "native": "accepted",
        "aot": "lost",
    }
    assert snapshot["decision"]["ratio"]["high"] < 0.99
    ledger = snapshot["ledger"]
    assert ledger["steps"] == 1500
    assert ledger["slowdown_seconds"] == pytest.approx(
        ledger["foreground_seconds"] + ledger["inflation_seconds"] + ledger["trial_seconds"]
    )
    assert snapshot["timeline"][0]["what"] == "capture"
    assert tuner.decision_record()["arm"] == "native"


def test_deterministic_mode_takes_the_pinned_plan() -> None:
    tuner = native.Tuner({"mode": "deterministic", "arms": ["native", "aot"], "pinned_arm": "aot"})
    actions = train(tuner, {"eager": 0.01, "aot": 9.0}, 5)
    assert tuner.current == "aot"
    assert not any(action["arm"] == "native" for action in actions)


def test_an_adopted_decision_is_not_tuned_again() -> None:
    tuner = native.Tuner({"arms": ["native", "aot"]})
    tuner.adopt("native")
    actions = train(tuner, {"eager": 0.01, "native": 0.007, "aot": 0.006}, 100)
    assert [a["kind"] for a in actions] == ["capture", "compile", "wait", "load", "run", "decide"]
    assert tuner.snapshot()["decision"]["from_database"] is True


def test_an_arm_that_fails_after_the_decision_is_rolled_back() -> None:
    tuner = native.Tuner({"mode": "max", "arms": ["native"]})
    train(tuner, {"eager": 0.01, "native": 0.007}, 1000)
    tuner.arm_changed("native", "failed", "wrong stride")
    kinds = [action["kind"] for action in tuner.advance()]
    assert kinds == ["rollback", "run"]
    assert "wrong stride" in tuner.status_reason


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"mode": "fastest"}, "mode .fastest. is unknown"),
        ({"colour": 1}, "unknown field"),
        ({"arms": ["native", "native"]}, "listed twice"),
        ({"arms": ["native"], "pinned_arm": "aot"}, "pinned plan"),
        ({"max_pairs": 1}, "maxPairs"),
        ({"budget_seconds": -1.0}, "budgetSeconds"),
    ],
)
def test_wrong_configurations_are_value_errors(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        native.Tuner(config)


def test_wrong_events_are_value_errors() -> None:
    tuner = native.Tuner({"arms": ["native"]})
    with pytest.raises(ValueError, match="unknown arm"):
        tuner.step_finished("nobody", 1.0)
    with pytest.raises(ValueError, match="took"):
        tuner.step_finished("eager", float("nan"))
    with pytest.raises(ValueError, match=r"state .done. is unknown"):
        tuner.arm_changed("native", "done")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "cache").mkdir(mode=0o700)
    yield tmp_path / "cache" / "tuning.sqlite"


def test_database_round_trip(path: Path) -> None:
    database = native.TuningDatabase(str(path))
    assert database.find(KEY, now=100) is None
    database.store(KEY, {"arm": "native", "reason": "é"}, now=100)
    assert native.TuningDatabase(str(path)).find(KEY, now=101) == {"arm": "native", "reason": "é"}
    with pytest.raises(ValueError, match="lacks"):
        database.find({"graph": "x"}, now=1)


def test_format_is_readable_with_the_standard_library(path: Path) -> None:
    """database_format.md promises this to the command line, which has neither torch nor this extension."""
    database = native.TuningDatabase(str(path))
    database.store(KEY, {"arm": "native", "reason": "é"}, now=100)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (0x41475344,)
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        key, record, crc32 = connection.execute("SELECT key, record, crc32 FROM decisions").fetchone()
    assert key == json.dumps(KEY, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert zlib.crc32(f"{key}\0{record}".encode()) == crc32


def test_export_import_prune_and_list(path: Path, tmp_path: Path) -> None:
    database = native.TuningDatabase(str(path))
    for graph in ("a", "b", "c"):
        database.store({**KEY, "graph": graph}, {"arm": "native"}, now=100)
    other = native.TuningDatabase(str(tmp_path / "other" / "tuning.sqlite"))
    assert other.import_text(database.export_text(), now=200) == 3
    assert [row["record"] for row in other.list()] == [{"arm": "native"}] * 3
    assert other.prune(used_before=0, max_rows=1) == 2
    with pytest.raises(ValueError, match="line 1"):
        other.import_text("garbage", now=1)


def test_an_untrusted_file_is_ignored_with_one_warning(path: Path) -> None:
    native.TuningDatabase(str(path)).store(KEY, {"arm": "native"}, now=1)
    path.chmod(0o666)
    database = native.TuningDatabase(str(path))
    assert not database.is_usable
    assert "others may write" in database.warning
    assert database.find(KEY, now=2) is None


def test_a_second_process_finds_the_decision(path: Path) -> None:
    native.TuningDatabase(str(path)).store(KEY, {"arm": "native"}, now=1)
    code = (
        "import json, sys, torch; from agspeed import _native as n;"
        "print(n.TuningDatabase(sys.argv[1]).find(json.loads(sys.argv[2]), 2)['arm'])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(path), json.dumps(KEY)], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "native"
