# SPDX-License-Identifier: Apache-2.0
"""`agspeed bench --coverage`: attribution on made-up events with known results, one real model, wrong input."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from agspeed import native
from benchmarks import coverage
from benchmarks.measure.native_programs import programs_of
from benchmarks.measure.step_shares import (
    CATEGORIES,
    STEP,
    Call,
    Event,
    Kernel,
    StepTime,
    attribute,
    dearest_calls,
    shares_of,
)

if TYPE_CHECKING:
    from agspeed._native import Instruction

_ROOT = Path(__file__).resolve().parents[3]
_MM = Call("aten.mm.default", "a library computes it", "f32[2,2]", is_product=True)
_T = Call("aten.t.default", "a call or an output needs the view", "f32[2,2]")
_SLICE = Call("aten.slice.Tensor", "it has no native form", "f32[1,2]")
_ADD, _EXP = Kernel("ag_kernel_add_1"), Kernel("ag_kernel_exp_2")
_ENGINE = "autograd::engine::evaluate_function: "


def _spent(steps: list[StepTime]) -> list[dict[str, float]]:
    """The times of each step that are not 0. Asserts that each step has a time for every category."""
    assert all(set(step.times) == set(CATEGORIES) for step in steps)
    return [{name: time for name, time in step.times.items() if time} for step in steps]


def test_nested_events_count_once() -> None:
    events = [
        Event(STEP, 1, 0, 100),
        Event("Torch-Compiled Region: 0/0", 1, 10, 50),
        Event("AgspeedRegionForward", 1, 13, 48),
        Event("agspeed::forward", 1, 15, 45),
        Event("aten::t", 1, 17, 20),
        Event("aten::transpose", 1, 18, 19),
        Event("aten::mm", 1, 22, 40),
        Event("aten::clone", 1, 46, 47),
        Event("aten::cross_entropy_loss", 1, 52, 60),
        Event("aten::log_softmax", 1, 53, 59),
        Event(_ENGINE + "AgspeedRegionBackward", 1, 62, 80),
        Event("AgspeedRegionBackward", 1, 64, 79),
        Event("agspeed::backward", 1, 65, 78),
        Event("aten::mm", 1, 66, 77),
        Event("Optimizer.step#SGD.step", 1, 85, 95),
        Event("aten::add_", 1, 86, 88),
    ]
    [step] = attribute(events, [[_T, _MM], [_MM]])
    assert _spent([step]) == [
        {
            "products": 18 + 11,
            "calls": 3,
            "dispatch": (2 + 2 + 5) + (2 + 3) + (2 + 1) + (1 + 1) + (1 + 1),
            "outside": 8,
            "optimizer": 10,
            "python": 10 + 3 + 2 + 2 + 2 + 5 + 5,
        }
    ]
    assert step.calls == {_T: 3, _MM: 29} and step.counts == {_T: 1, _MM: 2} and not step.unknown_ranges


def test_kernels_have_the_times_of_their_events() -> None:
    events = [
        Event(STEP, 1, 0, 60),
        Event("AgspeedRegionForward", 1, 0, 60),
        Event("agspeed::forward", 1, 1, 59),
        Event("aten::t", 1, 3, 10),
        Event(_ADD.name, 1, 12, 20),
        Event(_EXP.name, 1, 21, 32),
        Event("aten::mm", 1, 33, 40),
        Event("aten::copy_", 1, 42, 45),  # the runtime's own
        Event("aten::mm", 1, 47, 50),
        Event(_ADD.name, 1, 51, 58),
    ]
    [step] = attribute(events, [[_T, _ADD, _EXP, _MM, _MM, _ADD]])
    assert _spent([step]) == [
        {"kernels": 8 + 11 + 7, "products": 10, "calls": 7, "dispatch": 60 - 8 - 11 - 7 - 10 - 7},
    ]


def test_a_run_takes_the_program_with_its_kernels() -> None:
    other = Call("aten.t.default", "another reason", "f32[2,2]")
    events = [Event(STEP, 1, 0, 9), Event("agspeed::forward", 1, 0, 9), Event("aten::t", 1, 1, 2)]
    events.append(Event(_ADD.name, 1, 3, 4))
    [step] = attribute(events, [[other, _EXP], [_T, _ADD], [other, _EXP, _EXP]])
    assert step.calls == {_T: 1} and not step.unknown_ranges


def test_a_region_of_another_compiler_is_outside() -> None:
    events = [Event(STEP, 1, 0, 10), Event("AgspeedRegionForward", 1, 1, 9), Event("aten::mm", 1, 2, 8)]
    assert _spent(attribute(events, [[_MM]])) == [{"outside": 8, "python": 2}]


def test_other_threads_count_only_while_the_step_itself_runs_nothing() -> None:
    events = [
        Event(STEP, 1, 0, 30),
        Event("aten::add", 1, 0, 10),
        Event(_ENGINE + "AgspeedRegionBackward", 2, 5, 25),
        Event("AgspeedRegionBackward", 2, 6, 24),
        Event("agspeed::backward", 2, 7, 23),
        Event("aten::mm", 2, 8, 20),
        Event("aten::mul", 3, 4, 28),  # a third thread: the second one comes first
    ]
    [step] = attribute(events, [[_MM]])
    assert _spent([step]) == [{"outside": 10 + 3, "products": 10, "dispatch": 4 + 1, "python": 2}]


def test_each_step_has_its_own_times_and_events_outside_count_nowhere() -> None:
    events = [
        Event(STEP, 1, 0, 10),
        Event("aten::add", 1, 8, 14),  # reaches beyond the step
        Event("aten::add", 1, 15, 18),
        Event(STEP, 1, 20, 30),
        Event("aten::add", 1, 21, 22),
    ]
    assert _spent(attribute(events, [])) == [{"python": 8, "outside": 2}, {"python": 9, "outside": 1}]


def test_no_step_is_an_error() -> None:
    assert attribute([Event("aten::add", 1, 0, 5)], []) == []
    with pytest.raises(ValueError, match="no step"):
        shares_of([])


def test_a_run_that_fits_no_program_is_reported() -> None:
    events = [Event(STEP, 1, 0, 10), Event("agspeed::forward", 1, 0, 10), Event("aten::add", 1, 2, 8)]
    [step] = attribute(events, [[_MM, _ADD]])
    assert _spent([step]) == [{"calls": 6, "dispatch": 4}] and step.unknown_ranges == 1
    [call] = step.calls
    assert call.operator == "aten.add" and "another code" in call.reason


def test_shares_are_of_medians_and_sum_to_one() -> None:
    def step(products: float, python: float) -> StepTime:
        return StepTime(dict.fromkeys(CATEGORIES, 0.0) | {"products": products, "python": python}, {}, {}, 0)

    shares = shares_of([step(10, 5), step(30, 900), step(31, 10)])
    assert (shares["products"].share, shares["python"].share) == (0.75, 0.25)
    assert sum(share.share for share in shares.values()) == pytest.approx(1)


def test_calls_of_one_operator_and_reason_are_one_row() -> None:
    other = Call("aten.slice.Tensor", "it has no native form", "f32[4,4]")
    times = dict.fromkeys(CATEGORIES, 0.0) | {"calls": 9.0, "products": 11.0}
    step = StepTime(times, {_SLICE: 2, other: 7, _MM: 11}, {_SLICE: 1, other: 3, _MM: 1}, 0)
    assert [(call, share.share, count) for call, share, count in dearest_calls([step])] == [
        (_MM, pytest.approx(0.55), 1),
        (other, pytest.approx(0.45), 4),
    ]


def test_each_stage_of_an_entry_is_a_program() -> None:
    def instruction(kind: Any, name: str, reason: str = "") -> Instruction:
        return {"kind": kind, "name": name, "origin": "", "results": "f32[2,2]", "reason": reason}

    instructions = [
        instruction("call", "aten.t.default", "a call or an output needs the view"),
        instruction("call", "aten.mm.default", "it has no native form"),
        instruction("ready", ""),
        instruction("kernel", _ADD.name),
    ]
    assert programs_of(instructions) == [[_T, _MM], [_ADD]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--coverage", "tiny_mlp", "run"], "unrecognized arguments: run"),
        (["--coverage", "tiny_mlp", "--candidates", "eager"], "unrecognized arguments: --candidates eager"),
        (["--coverage"], "expected one argument"),
        (["--coverage", "tiny_mlp", "--steps", "0"], "--steps must be at least 1, but is 0"),
        (["--coverage", "tiny_mlp", "--threads=-1"], "--threads must be at least 1, but is -1"),
        (["--coverage", "tiny_mlp", "--json", "missing/out.json"], "its folder does not exist"),
    ],
)
def test_wrong_options_are_one_sentence(options: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        coverage.main(options)
    assert "\n" not in str(raised.value)


def test_an_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown workload 'bret'; known: .*bert"):
        coverage.find("bret")


def test_a_missing_native_backend_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load", lambda: None)
    monkeypatch.setattr(native, "why_missing", lambda: "it was not built.")
    with pytest.raises(ValueError, match=r"--coverage needs the native backend: it was not built\."):
        coverage.find("tiny_mlp")


def test_regions_that_do_not_run_natively_are_named() -> None:
    def region(index: int, chosen: str) -> dict[str, Any]:
        refused = {"name": "native", "state": "failed", "reason": "an operator is missing"}
        return {"id": f"r{index}", "chosen": chosen, "candidates": [refused]}

    reports = {"model": {"regions": [region(0, "native"), region(1, "graph-eager")]}}
    assert coverage.native_regions(reports) == {"native": 1, "others": ["r1 runs graph-eager"]}
    with pytest.raises(ValueError, match="no part of the model: r1 failed: an operator is missing"):
        coverage.native_regions({"model": {"regions": [region(1, "graph-eager")]}})
    with pytest.raises(ValueError, match="none was captured"):
        coverage.native_regions({"model": {"regions": []}})


def test_a_narrow_terminal_shows_the_reasons() -> None:
    call = {"operator": "aten._native_batch_norm_legit_functional.default", "count": 9, "ms": 2.07, "share": 0.014}
    document = {
        "model": "net",
        "threads": 1,
        "steps": 2,
        "machine": {"cpu": "CPU"},
        "step_ms": 1.0,
        "profiled_step_ms": 2.0,
        "shares": {},
        "calls": [call | {"reason": "it has no native form"}],
        "regions": {"native": 1, "others": ["r1 runs graph-eager"]},
        "unknown_ranges": 0,
    }
    console = Console(width=80, file=io.StringIO(), markup=False)
    coverage.show(document, console)
    assert isinstance(console.file, io.StringIO)
    words = console.file.getvalue().split()
    assert {"native", "form", "2.07", "1.4%", "9"} <= set(words) and "graph-eager." in words


@pytest.mark.slow
@pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "the native extension is there")
def test_a_model_is_measured_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    options = ["--coverage", "tiny_mlp", "--steps=3", f"--json={path}"]
    command = [sys.executable, "-m", "agspeed", "bench", *options]
    done = subprocess.run(command, cwd=_ROOT, env=os.environ | {"COLUMNS": "100"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text(encoding="utf-8"))
    shares = {name: row["share"] for name, row in found["shares"].items()}
    assert sum(shares.values()) == pytest.approx(1)
    assert found["regions"] == {"native": 1, "others": []} and not found["unknown_ranges"]
    assert all(shares[name] > 0 for name in ("kernels", "products", "calls", "dispatch", "outside", "optimizer"))
    counts = {call["operator"]: call["count"] for call in found["calls"]}
    assert counts["aten.addmm.default"] == 3 and counts["aten.mm.default"] == 5  # one without an input's gradient
    assert all(call["reason"] for call in found["calls"])
    reasons = {call["operator"]: call["reason"] for call in found["calls"]}
    assert reasons["aten.addmm.default"] == "a library computes it"  # the compiler's own words
    assert "native kernels" in done.stdout and "aten.addmm.default" in done.stdout
