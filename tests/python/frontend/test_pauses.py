# SPDX-License-Identifier: Apache-2.0
"""The report of a real run shows when training stood still, what was captured and what runs."""

from __future__ import annotations

from typing import Any

import pytest

import agspeed
from tests.python.support.small_models import mlp, steps


def _report(backend: str, mode: str, count: int) -> dict[str, Any]:
    model = agspeed.optimize(mlp(), mode=mode, backends=[backend])
    steps(model, count)
    return agspeed.report(model).to_dict()  # type: ignore[no-any-return]


def test_capture_compile_and_check_are_pauses_in_their_order() -> None:
    found = _report("aot", "deterministic", 6)
    pauses = found["timeline"]["pauses"]
    kinds = [pause["kind"] for pause in pauses]
    assert [kind for kind in kinds if kind != "start-up"][:3] == ["capture", "compile", "gate"], pauses
    assert {pause["candidate"] for pause in pauses if pause["kind"] in ("compile", "gate")} == {"aot"}
    begins = [pause["at_s"] for pause in pauses]
    assert begins == sorted(begins)
    assert found["timeline"]["at_s"] == sorted(found["timeline"]["at_s"])
    assert sum(pause["seconds"] for pause in pauses) <= found["header"]["wall_s"]


def test_a_region_carries_its_source_and_its_graph() -> None:
    (region,) = _report("aot", "deterministic", 6)["regions"]
    assert region["source"] is not None and ">" in region["source"]
    assert "tanh" in region["graph"] and region["generated"] is None


def test_an_error_carries_the_limit_of_the_gate() -> None:
    (region,) = _report("native", "deterministic", 6)["regions"]
    (candidate,) = [row for row in region["candidates"] if row["name"] == "native"]
    for group in ("forward", "gradients"):
        errors = candidate["gate"][group]
        assert 0 < errors["max"] <= errors["allowed_max"] and 0 < errors["rms"] <= errors["allowed_rms"]


@pytest.mark.slow
def test_inductors_code_is_shown() -> None:
    (region,) = _report("inductor", "deterministic", 6)["regions"]
    assert region["chosen"] == "inductor" and "async_compile" in region["generated"]
