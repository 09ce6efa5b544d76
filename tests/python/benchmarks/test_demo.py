# SPDX-License-Identifier: Apache-2.0
"""The acts of `make demo` with a tiny model: their output and the files that they leave."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from agspeed import netbed
from agspeed.reporting import model
from benchmarks import demo, demo_elastic, demo_ranks, planted_fault
from benchmarks.measure import candidates
from benchmarks.measure.pairing import Limits
from benchmarks.workloads.base import Training, Workload, supervised
from tests.python.frontend.conftest import fresh_dynamo, machinery  # noqa: F401

LIMITS = Limits(min_pairs=2, max_pairs=4, seconds=5, block_seconds=0.001)


def _make() -> Training:
    network = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    batches = [(torch.randn(4, 8),) for _ in range(3)]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    return supervised(network, optimizer, lambda network, batch: network(batch[0]).square().mean(), batches)


TINY = Workload("tiny", "a test", 3, _make)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses our own backends only, and replaces torch.compile by eager."""
    monkeypatch.setattr(demo, "_BACKENDS", ["native", planted_fault.NAME])
    monkeypatch.setattr(demo, "_BUDGET_SECONDS", 600.0)
    monkeypatch.setattr(demo, "_LONGEST_SECONDS", 600.0)
    monkeypatch.setitem(candidates.CANDIDATES, "inductor", candidates.CANDIDATES["eager"])


def test_the_first_act_refuses_the_fault_and_the_second_begins_with_the_decision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.gain(TINY, tmp_path, LIMITS)
    shown = capsys.readouterr().out
    assert 'backends=["planted-fault"]), which rounds a result to bfloat16:\nwrong: ' in shown
    for side in ("eager", "torch.compile", "agspeed"):
        assert f"{side:>15}" in shown, shown
    first = model.load(tmp_path / "report.json").to_dict()
    assert first["decision"]["source"] == "measured" and first["decision"]["chosen"] != planted_fault.NAME

    demo.second_start(TINY, tmp_path, LIMITS)
    second = model.load(tmp_path / "second-report.json").to_dict()
    assert second["decision"]["source"] == "cache" and second["decision"]["chosen"] == first["decision"]["chosen"]

    demo.look(TINY, tmp_path, LIMITS)
    *_, last = capsys.readouterr().out.strip().splitlines()
    assert Path(last.strip()).read_text().lstrip().startswith("<!doctype html>")


def test_a_compiler_that_takes_too_long_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_INDUCTOR_SECONDS", 0.0)
    demo.gain(TINY, tmp_path, LIMITS)
    shown = capsys.readouterr().out
    assert (
        "torch.compile is left out" in shown and f"{'agspeed':>15}" in shown and f"{'torch.compile':>15}" not in shown
    )


def test_all_acts_are_announced_with_what_they_show_and_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    monkeypatch.setattr(demo, "_run_act", lambda number, *_: begun.append(number) or 0)
    assert demo.main(["--folder", str(tmp_path / "demo")]) == 0
    shown = capsys.readouterr().out
    assert begun == [1, 2, 3, 4, 5]
    assert all(f"=== Act {number} of 5: " in shown for number in begun) and "min) ===" in shown


@pytest.mark.slow
@pytest.mark.skipif(netbed.unavailable() is not None, reason=netbed.unavailable() or "-")
def test_the_act_of_two_ranks_outlives_a_cut_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_ranks, "_WAYS", {"agspeed": "agspeed"})
    monkeypatch.setattr(demo_ranks, "_READY_SECONDS", 3.0)
    monkeypatch.setattr(demo_ranks, "_STEPS", 15)
    monkeypatch.setattr(demo_ranks, "_CUT_SECONDS", 90.0)
    demo_ranks.show(tmp_path)
    shown = capsys.readouterr().out
    assert "a step over the other link" in shown, shown
    assert f"{'agspeed':>28}" in shown, shown


def test_the_act_of_two_ranks_says_why_it_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_ranks.netbed, "unavailable", lambda: "no namespaces")
    demo_ranks.show(tmp_path)
    assert capsys.readouterr().out == "left out: no networks of its own can be made here (no namespaces)\n"


@pytest.mark.thorough
def test_the_act_of_a_lost_process_ends_with_equal_weights(capsys: pytest.CaptureFixture[str]) -> None:
    demo_elastic.show()
    shown = capsys.readouterr().out
    assert "was killed with SIGKILL" in shown and "the 4 processes have equal weights" in shown, shown


def test_an_act_that_fails_ends_the_demonstration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_run_act", lambda number, *_: number)
    assert demo.main(["--folder", str(tmp_path / "demo")]) == 1


def test_an_act_that_takes_too_long_is_ended_and_says_how_to_give_it_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_ACT_SECONDS", 0.01)
    assert demo.main(["--folder", str(tmp_path / "demo")]) == 1
    shown = capsys.readouterr().out
    assert "act 1 was ended after 0 s" in shown and "-m benchmarks.demo --act 1 --workload dropout_heavy" in shown


def test_the_planted_candidate_is_gone_after_the_block() -> None:
    from agspeed.backends import candidate_names

    with planted_fault.installed():
        assert planted_fault.NAME in candidate_names()
    assert planted_fault.NAME not in candidate_names()
