# SPDX-License-Identifier: Apache-2.0
"""`agspeed bench --coverage`: attribution on made-up events with known results, one real model, wrong input."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agspeed import native
from benchmarks import coverage
from benchmarks.measure.native_programs import parse
from benchmarks.measure.step_shares import (
    CATEGORIES,
    REGION,
    STEP,
    Call,
    Event,
    Kernel,
    StepTime,
    attribute,
    dearest_calls,
    shares_of,
)

_ROOT = Path(__file__).resolve().parents[3]
_MM = Call("aten.mm.default", "a library computes it", "f32[2,2]", is_product=True)
_T = Call("aten.t.default", "a call or an output needs the view", "f32[2,2]")
_SLICE = Call("aten.slice.Tensor", "it has no native form", "f32[1,2]")
_ENGINE = "autograd::engine::evaluate_function: "


def _spent(steps: list[StepTime]) -> list[dict[str, float]]:
    """The times of each step that are not 0. Asserts that each step has a time for every category."""
    assert all(set(step.times) == set(CATEGORIES) for step in steps)
    return [{name: time for name, time in step.times.items() if time} for step in steps]


def test_nested_events_count_once() -> None:
    events = [
        Event(STEP, 1, 0, 100),
        Event("Torch-Compiled Region: 0/0", 1, 10, 50),
        Event(REGION, 1, 15, 45),
        Event("aten::t", 1, 17, 20),
        Event("aten::transpose", 1, 18, 19),
        Event("aten::mm", 1, 22, 40),
        Event("aten::cross_entropy_loss", 1, 52, 60),
        Event("aten::log_softmax", 1, 53, 59),
        Event(_ENGINE + "AgspeedRegionBackward", 1, 62, 80),
        Event("AgspeedRegionBackward", 1, 64, 79),
        Event("aten::mm", 1, 66, 77),
        Event("Optimizer.step#SGD.step", 1, 85, 95),
        Event("aten::add_", 1, 86, 88),
    ]
    [step] = attribute(events, [[_T, _MM], [_MM]])
    assert _spent([step]) == [
        {
            "products": 18 + 11,
            "calls": 3,
            "dispatch": 2 + 2 + 5 + (2 + 2 + 2 + 1),
            "outside": 8,
            "optimizer": 10,
            "python": 10 + 5 + 5 + 2 + 2 + 5 + 5,
        }
    ]
    assert step.calls == {_T: 3, _MM: 29} and step.counts == {_T: 1, _MM: 2} and not step.unknown_ranges


def test_a_gap_with_kernels_loses_the_usual_cost_of_a_gap() -> None:
    # Gaps without kernels last 2 between calls, and 3 at the edges of a range.
    events = [
        Event(STEP, 1, 0, 60),
        Event(REGION, 1, 0, 60),
        Event("aten::t", 1, 3, 10),
        Event("aten::t", 1, 12, 20),
        Event("aten::mm", 1, 32, 40),
        Event("aten::copy_", 1, 42, 45),  # the runtime's own
        Event("aten::mm", 1, 47, 50),
    ]
    [step] = attribute(events, [[_T, _T, Kernel(), Kernel(), _MM, _MM, Kernel()]])
    assert _spent([step]) == [
        {"kernels": (12 - 2) + (10 - 3), "products": 11, "calls": 15, "dispatch": 3 + 2 + 2 + (2 + 3 + 2) + 3}
    ]


def test_a_region_of_kernels_alone_has_kernel_time() -> None:
    [step] = attribute([Event(STEP, 1, 0, 10), Event(REGION, 1, 1, 9)], [[Kernel()]])
    assert _spent([step]) == [{"kernels": 8, "python": 2}]


def test_other_threads_count_only_while_the_step_itself_runs_nothing() -> None:
    events = [
        Event(STEP, 1, 0, 30),
        Event("aten::add", 1, 0, 10),
        Event(_ENGINE + "AgspeedRegionBackward", 2, 5, 25),
        Event("AgspeedRegionBackward", 2, 6, 24),
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


def test_a_range_that_fits_no_program_is_reported() -> None:
    events = [Event(STEP, 1, 0, 10), Event(REGION, 1, 0, 10), Event("aten::add", 1, 2, 8)]
    [step] = attribute(events, [[_MM, Kernel()]])
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


def test_the_compilers_text_gives_instructions_with_reasons() -> None:
    text = """graph
  %a = input f32[2,2]
  %t = call "aten.t.default"(%a) view [1, 0] alias : f32[2,2]{1,2} @"t"
  %mm = call "aten.mm.default"(%a, %t) : f32[2,2] @"mm"
  %r, %s = kernel 0(%mm) integers [4, 1] extent [4] grain [10] : f32[2,2], f32[2] @"relu,sum"
  %b = call "aten.bernoulli.p"(%a, float 0.8) random : f32[2,2] @"bernoulli"
  %u = call "aten.sum.dim_IntList"(%a, [int 0], true) : f32[1,2] @"sum_1"
  %v = call "aten.max_pool2d_with_indices.default"(%a) : (f32[1], i64[1]) @"pool"
  %w = call "own.op.default"(%a) opaque : f32[2]
  return %r, %u
releases
  after node 1: %t
"""
    program = parse(text, frozenset({"aten.sum.dim_IntList"}))
    assert [item.operator if isinstance(item, Call) else "kernel" for item in program] == [
        "aten.t.default",
        "aten.mm.default",
        "kernel",
        "aten.bernoulli.p",
        "aten.sum.dim_IntList",
        "aten.max_pool2d_with_indices.default",
        "own.op.default",
    ]
    view, product, _, random, refused, missing, opaque = program
    assert isinstance(product, Call) and product.is_product and product.result == "f32[2,2]"
    reasons = [call.reason for call in (view, random, refused, missing, opaque) if isinstance(call, Call)]
    words = ("view", "random numbers", "native form does not fit", "no native form", "effects are unknown")
    assert all(word in reason for word, reason in zip(words, reasons, strict=True))


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
    assert "native kernels" in done.stdout and "aten.addmm.default" in done.stdout
