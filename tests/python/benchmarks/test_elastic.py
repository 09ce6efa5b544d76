# SPDX-License-Identifier: Apache-2.0
"""The cases of kind `elastic`: what their jobs note about a fault."""

from __future__ import annotations

import pytest

from agspeed import native
from benchmarks import table
from benchmarks.kinds import elastic, elastic_cost

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]


@pytest.mark.parametrize("way", ["elastic", pytest.param("restart", marks=pytest.mark.thorough)])
def test_a_fault_is_timed_and_weights_are_equal(way: str) -> None:
    case = {"name": "elastic/test", "ranks": 3, "compute_seconds": 0.02, "seed": 5}
    case |= {"faults": {"elastic": 3}, "spares_oldest": True} if way == "elastic" else {"faults": {way: 1}}
    (row,) = elastic.plan(case, 1, {})
    result = elastic.measure({"case": case, "cores": [0], **row})
    cell = elastic.summarize(case, [result])
    (job,) = cell["jobs"]
    assert cell["status"] == "ok" and job["equal_weights"], cell
    assert 0 < job["resumed"]["max"] <= job["complete"]["max"], cell
    assert 0 < job["goodput"] <= 2, cell
    if way == "elastic":
        assert job["lost_steps"] <= 1 and job["noticed"]["max"] <= job["resumed"]["max"], cell
        assert len({held["pid"] for held in result["held"]}) == 1, result["held"]
        assert isinstance(job["memory_growth_per_hour"], float), cell
    head = {"version": 1, "command": "-", "date": "-", "settings": {}}
    machine = dict.fromkeys(("cpu", "cores", "memory_gb", "isa", "kernel", "python", "torch", "allocator"), "-")
    shown = table.render(head | {"machine": machine, "cells": [{"kind": "elastic", "case": "a", "threads": 1, **cell}]})
    assert (
        f"| a | {'agspeed.elastic' if way == 'elastic' else 'torchrun, restarted'} | {case['faults'][way]} |" in shown
    ), shown


def test_an_elastic_job_is_timed_beside_plain_loops() -> None:
    case = {"name": "elastic/test", "ranks": 2}
    limits = {"min_pairs": 2, "max_pairs": 2, "seconds": 60.0}
    spec = {"case": case, "cores": [0], "settings": {"limits": limits}}
    cell = elastic_cost.summarize(case, [elastic_cost.measure(spec)])
    assert 0 < cell["advance_us"]["value"] < 1e3 * cell["elastic"]["ms"], cell
    for side in ("control", "elastic"):
        assert cell[side]["slowdown"]["count"] == 2 and cell[side]["stopped"], cell
        assert cell[side]["ms"] > 0 and cell[side]["reference_ms"] > 0, cell
    head = {"version": 1, "command": "-", "date": "-", "settings": {}}
    machine = dict.fromkeys(("cpu", "cores", "memory_gb", "isa", "kernel", "python", "torch", "allocator"), "-")
    row = {"kind": "elastic_cost", "case": "a", "threads": 2, **cell}
    assert "| a | 2 |" in table.render(head | {"machine": machine, "cells": [row]})
