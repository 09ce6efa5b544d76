# SPDX-License-Identifier: Apache-2.0
"""The benchmark of NCCL's network tables: cells from runs with known results, and their table."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from benchmarks import cases, table
from benchmarks.comm import nccl_faults, nccl_programs
from benchmarks.comm.bounds import PAYLOAD
from benchmarks.kinds import nccl_net
from tests.python.support.benchmark_results import SCHEMA, result_of

BYTES = 50_000_000
CASE = {
    "name": "n",
    "pattern": "pair",
    "hosts": 2,
    "rates": ["200mbit", "200mbit"],
    "ways": ["agspeed", "control", "nccl"],
}


def cell(control_seconds: float) -> dict[str, Any]:
    """Returns a cell in which agspeed takes 1.1 s and NCCL on one rail 2.2 s."""
    seconds = {"agspeed": 1.1, "control": control_seconds, "nccl": 2.2}
    ways = {name: nccl_net._row(BYTES, [nccl_programs.Run([each] * 3, 0.8)]) for name, each in seconds.items()}
    measured = {
        "hosts": 2,
        "rates": [CASE["rates"]] * 2,
        "stream": {"bits_per_second": [1.9e8, 1.9e8]},
        "failed": {},
        "operations": [{"bytes": BYTES, "messages": 4, "ways": ways}],
    }
    head = {"case": "n", "kind": "nccl_net", "stresses": "", "threads": 2, "wall_seconds": 1.0}
    return head | nccl_net.summarize(CASE, [measured])


def faults_cell(row: dict[str, Any]) -> dict[str, Any]:
    measured = {"hosts": 2, "rates": [CASE["rates"]] * 2, "stream": {"bits_per_second": []}, "failed": {}}
    head = {"case": "f", "kind": "nccl_net", "stresses": "", "threads": 2, "wall_seconds": 1.0}
    return head | nccl_net.summarize(CASE, [measured | {"faults": [row]}])


def test_rates_stand_beside_agspeeds_and_the_ceiling() -> None:
    found = cell(1.1)
    assert found["status"] == "ok"
    ways = found["operations"][0]["ways"]
    assert ways["nccl"]["rate_of_agspeed"] == pytest.approx(2.0)
    assert ways["agspeed"]["share"] == pytest.approx(BYTES / (50e6 * PAYLOAD) / 1.1, rel=0.02)
    assert ways["agspeed"]["cpu_seconds_per_gb"] == pytest.approx(0.8 / BYTES * 1e9)
    jsonschema.validate(result_of(found), SCHEMA)
    assert "| n | 50000000 in 4 | nccl | 2200.000 (2200.000 to 2200.000) |" in table.render(result_of(found))


def test_a_control_off_the_mark_voids_the_cell() -> None:
    found = cell(1.3)
    assert found["status"] == "void"
    assert "a second agspeed differs by 1.182" in found["reason"]


def test_faults_are_judged_by_their_bytes() -> None:
    fault = nccl_faults.FAULTS["cut at the sender"]
    runs = [nccl_faults.Outcome([0.03] * 9 + [longest], wrong_bytes=0, strikes=2) for longest in (0.13, 0.05)]
    found = faults_cell(nccl_faults.row(fault, runs))
    assert found["status"] == "ok"
    assert found["faults"][0]["stalls_ms"] == pytest.approx([100, 20])
    jsonschema.validate(result_of(found), SCHEMA)
    assert "| cut at the sender | 20 | 4 | 0 | 30.0 | 100, 20 | 200 |" in table.render(result_of(found))
    wrong = faults_cell(nccl_faults.row(fault, [*runs, nccl_faults.Outcome([0.03], wrong_bytes=3, strikes=1)]))
    assert (wrong["status"], wrong["reason"]) == ("failed", "3 bytes came wrong")


def test_every_way_of_a_case_is_known() -> None:
    for case in cases.select([], "nccl_net"):
        assert all(nccl_programs.find(name).name == name for name in case["ways"])
        assert case["ways"][0] == nccl_programs.OURS
    with pytest.raises(ValueError, match="unknown way 'gloo'"):
        nccl_programs.find("gloo")
