# SPDX-License-Identifier: Apache-2.0
"""Results of benchmarks, made without a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import cells
from benchmarks.kinds import steady

SCHEMA = json.loads((Path(cells.__file__).parent / "result.schema.json").read_text(encoding="utf-8"))


def comparison(speedup: float) -> dict[str, Any]:
    estimate = {"value": speedup, "low": speedup - 0.005, "high": speedup + 0.005, "count": 100, "half_width": 0.005}
    return {
        "speedup": estimate,
        "extra_us": {"value": -1.5, "low": -2.0, "high": -1.0},
        "ms": 1.0,
        "reference_ms": speedup,
        "steps_per_block": 1,
        "stopped": "narrow",
    }


def steady_cell(name: str, speedups: dict[str, float], control: float = 1.001) -> dict[str, Any]:
    rows = {
        key: {"status": "timed", "chosen": {"model": "native"} if key == "agspeed" else {}, **comparison(value)}
        for key, value in speedups.items()
    }
    measured = {"eager_ms": 2.0, "control": comparison(control), "candidates": rows}
    head = {"case": name, "kind": "steady", "stresses": "", "threads": 1, "workload": name, "gemm_share": 0.25}
    return head | steady.summarize({}, [measured]) | {"wall_seconds": 1.0}


def result_of(*found: dict[str, Any]) -> dict[str, Any]:
    machine = {
        "cpu": "X",
        "cores": 2,
        "memory_gb": 8.0,
        "isa": "AVX2",
        "kernel": "6",
        "python": "3.12",
        "torch": "2.11.0",
    }
    settings: dict[str, Any] = {"candidates": [], "limits": {}, "settle_seconds": 1, "steps": 0}
    head = {"version": 1, "command": "run", "date": "2026-01-02", "machine": machine | {"allocator": "default"}}
    return head | {"settings": settings, "cells": list(found)}
