# SPDX-License-Identifier: Apache-2.0
"""The cases of kind `elastic`: what their jobs note about a fault."""

from __future__ import annotations

import pytest

from agspeed import native
from benchmarks import table
from benchmarks.kinds import elastic

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]


@pytest.mark.parametrize("way", ["elastic", pytest.param("restart", marks=pytest.mark.thorough)])
def test_a_fault_is_timed_and_weights_are_equal(way: str) -> None:
    case = {"name": "elastic/test", "ranks": 3, "compute_seconds": 0.02, "seed": 5, "faults": {way: 1}}
    (row,) = elastic.plan(case, 1, {})
    result = elastic.measure({"case": case, "cores": [0], **row})
    cell = elastic.summarize(case, [result])
    (job,) = cell["jobs"]
    assert cell["status"] == "ok" and job["equal_weights"], cell
    assert 0 < job["resumed"]["max"] <= job["complete"]["max"], cell
    assert 0 < job["goodput"] <= 2, cell
    if way == "elastic":
        assert job["lost_steps"] <= 1 and job["noticed"]["max"] <= job["resumed"]["max"], cell
    head = {"version": 1, "command": "-", "date": "-", "settings": {}}
    machine = dict.fromkeys(("cpu", "cores", "memory_gb", "isa", "kernel", "python", "torch", "allocator"), "-")
    shown = table.render(head | {"machine": machine, "cells": [{"kind": "elastic", "case": "a", "threads": 1, **cell}]})
    assert f"| a | {'agspeed.elastic' if way == 'elastic' else 'torchrun, restarted'} | 1 |" in shown, shown
