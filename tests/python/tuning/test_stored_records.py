# SPDX-License-Identifier: Apache-2.0
"""An invalid record in the database causes one warning and counts as missing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from agspeed import config, log
from agspeed.tuning.decision_store import DecisionStore
from agspeed.tuning.stored_decision import why_no_record

native = pytest.importorskip("agspeed._native", reason="agspeed._native is not built")

KEY = {"graph": "g", "shapes": [], "dtypes": [], "device": "cpu", "threads": 1, "isa": "avx2", "versions": {}}
BAD: list[dict[str, Any]] = [
    {"arm": "native+rX:native"},
    {"arm": "native+r1"},
    {"arm": "native/no-layout"},
    {"arm": "native", "capture_seconds": []},
    {"arm": "native", "capture_seconds": "3"},
    {"arm": "native", "capture_seconds": -1.0},
    {"arm": "native", "capture_seconds": 1e300},
    {"arm": "native", "capture_seconds": True},
    {"arm": "", "capture_seconds": {}},
]


@pytest.mark.parametrize("record", BAD)
def test_an_invalid_record_is_reported_once(
    record: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log.logger, "propagate", True)
    native.TuningDatabase(str(tmp_path / "tuning.sqlite")).store(KEY, record, 1)
    store = DecisionStore(config.resolve({"cache_dir": tmp_path}), KEY)
    with caplog.at_level(logging.WARNING, logger=log.logger.name):
        assert store.find() is None and store.find() is None
    assert store.rows() == []
    assert len([line for line in caplog.messages if "is ignored" in line]) <= 1


@pytest.mark.parametrize("record", [{"arm": ""}, {"arm": "native", "capture_seconds": None}, {"arm": "a+r1:b/b1-4"}])
def test_what_agspeed_writes_is_a_record(record: dict[str, Any], tmp_path: Path) -> None:
    assert why_no_record(record) is None
    native.TuningDatabase(str(tmp_path / "tuning.sqlite")).store(KEY, record, 1)
    store = DecisionStore(config.resolve({"cache_dir": tmp_path}), KEY)
    assert store.find() == record and len(store.rows()) == 1
