# SPDX-License-Identifier: Apache-2.0
"""Fusion plans, the timeline and tuning: their output, and that no result depends on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agspeed import native
from agspeed.horovod import environment
from agspeed.horovod.torch.autotune import HEADER, plans_of
from tests.python.distributed.ranks import Ranks
from tests.python.horovod import tuning_programs

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(2) as started:
        yield started


def test_plans_that_change_every_ten_steps_leave_the_weights_as_they_are(ranks: Ranks, tmp_path: Path) -> None:
    undisturbed = ranks.run(tuning_programs.train, tmp_path, steps=200)
    changed = ranks.run(tuning_programs.train, tmp_path, steps=200, plan_every=10)
    for before, after in zip(undisturbed, changed, strict=True):
        torch.testing.assert_close(after["weights"], before["weights"], rtol=0, atol=0)
    assert [found["stats"]["plan_version"] for found in changed] == [20, 0]
    for found in (*undisturbed, *changed):
        assert found["stats"]["fusion_buffers"] <= 4
        assert found["stats"]["max_fusion_buffer_bytes"] <= 4 * (1 << 16)  # the smallest possible size of a buffer


def test_tuning_writes_horovods_table_and_leaves_the_weights_as_they_are(ranks: Ranks, tmp_path: Path) -> None:
    undisturbed = ranks.run(tuning_programs.train, tmp_path, steps=150)
    log = tmp_path / "tuned.csv"
    settings = {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": str(log),
        "AGSPEED_CACHE_DIR": str(tmp_path / "cache"),
    }
    tuned = ranks.run(tuning_programs.train, tmp_path, steps=150, settings=settings)
    torch.testing.assert_close([found["weights"] for found in tuned], [found["weights"] for found in undisturbed])
    assert tuned[0]["stats"]["plan_version"] > 0
    header, *rows = log.read_text().splitlines()
    assert header == HEADER
    values = [[float(value) for value in row.split(",")] for row in rows]
    assert len(values) > 2 and all(len(row) == len(header.split(",")) and row[-1] > 0 for row in values)
    assert values[-1][5] in {row[5] for row in values[:-1]}


def test_what_is_set_is_not_tuned() -> None:
    def names(**variables: str) -> set[str]:
        return {plan.name for plan in plans_of(environment.options(variables)).values()}

    assert names(HOROVOD_FUSION_THRESHOLD="4194304") == {
        f"{order} 4 MiB" for order in ("time", "size", "priority", "model")
    }
    assert names(HOROVOD_FUSION_ORDER="model") == {f"model {size} MiB" for size in (2, 8, 32, 64)}
    assert names(HOROVOD_FUSION_THRESHOLD="0", HOROVOD_FUSION_ORDER="time") == {"time 0 MiB"}
    assert len(names()) == 7


def events_by_name(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns the events of each operation."""
    events = json.loads(path.read_text())
    names = {event["pid"]: event["args"].get("name", "") for event in events if event.get("name") == "process_name"}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] in "BEX":
            found[names[event["pid"]]].append(event)
    return found


def test_a_trace_begins_and_ends_while_the_job_runs(ranks: Ranks, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    ranks.run(tuning_programs.trace, tmp_path, path=str(path), settings={})
    found = events_by_name(path)
    assert {"within", "gathered"} <= found.keys() and not {"before", "after"} & found.keys()
    begun = [event["name"] for event in found["within"] if event["ph"] == "B"]
    assert begun == [
        "NEGOTIATE_ALLREDUCE",
        "ALLREDUCE",
        "QUEUE",
        "MEMCPY_IN_FUSION_BUFFER",
        "GLOO_ALLREDUCE",
        "MEMCPY_OUT_FUSION_BUFFER",
    ]
    assert sorted(event["name"] for event in found["within"] if event["ph"] == "X") == ["0", "1"]
    for events in found.values():
        assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    assert "CYCLE_START" in path.read_text()


def test_a_trace_may_be_of_the_whole_job(ranks: Ranks, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    ranks.run(tuning_programs.traced_from_the_start, tmp_path, path=str(path))
    found = events_by_name(path)
    assert sum(event["ph"] == "B" for event in found["reduced"]) == sum(
        event["ph"] == "E" for event in found["reduced"]
    )


def test_a_trace_that_cannot_be_written_says_so(ranks: Ranks, tmp_path: Path) -> None:
    path = str(tmp_path / "missing" / "trace.json")
    assert ranks.run(tuning_programs.trace_into_nowhere, tmp_path, path=path)[0] == (
        f"HorovodInternalError: the timeline '{path}' cannot be written: No such file or directory; "
        "choose a file that this process can write"
    )
