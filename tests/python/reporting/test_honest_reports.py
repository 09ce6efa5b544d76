# SPDX-License-Identifier: Apache-2.0
"""Reports of random trainings: times, ratios and advice never contradict each other.

The tuner is real and gets simulated steps. The code that makes a report of its state is real, too. The machine slows
down and recovers at random, arms fail, are refused, resumed or adopted, and training ends at any moment.
"""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agspeed import config
from agspeed.frontend.history import History
from agspeed.frontend.session_report import make_report
from agspeed.frontend.steps import StepTimes
from agspeed.reporting import summary
from agspeed.tuning.snapshot import with_facts

native = pytest.importorskip("agspeed._native", reason="agspeed._native is not built")

NUM_REPORTS = 200
_NOT_RETAINED = {
    "is_on": False,
    "held_bytes": 0,
    "limit_bytes": None,
    "reason": None,
    "faults_before": None,
    "faults_after": None,
}
_NAMES = ("native", "inductor", "aot", "graph-eager")


class Training:
    """A training whose random choices all follow from the seed. `report()` works at any time."""

    def __init__(self, seed: int) -> None:
        self.random = noise = random.Random(seed)
        self.mode = noise.choice(["auto", "max", "max", "fast-start"])
        names = noise.sample(_NAMES, noise.randint(1, len(_NAMES)))
        self.eager_s = 10 ** noise.uniform(-4, -1)
        self.ratios = {"eager": 1.0} | {name: noise.lognormvariate(-0.1, 0.25) for name in names}
        self.sigma = noise.choice([0.005, 0.03, 0.1])
        self.work_s = {name: self.eager_s * 10 ** noise.uniform(0, 4) for name in names}
        self.ends = {name: noise.choice(["ready"] * 6 + ["rejected", "failed", "skipped"]) for name in names}
        self.pace, self.history = 1.0, History()
        self.tuner = native.Tuner({"mode": self.mode, "arms": names, "capture_seconds": 20 * self.eager_s})
        self.is_adopted = noise.random() < 0.25
        if self.is_adopted:
            self.tuner.adopt(noise.choice(names))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._advance()
            if self.random.random() < 0.02:
                self.pace = self.random.choice([1.0, 1.0, 1.3, 4.0])
            plan = self.tuner.current
            noise = self.random.lognormvariate(0, self.sigma) * self.random.choice([1.0] * 40 + [5.0])
            seconds = self.eager_s * self.ratios[plan] * self.pace * noise
            self.history.add_step(plan, StepTimes(seconds, 0.0))
            self.tuner.step_finished(plan, seconds, shape="a", peak_bytes=1 << 20)

    def _advance(self) -> None:
        is_answered = True
        while is_answered:
            is_answered = False
            for action in self.tuner.advance():
                is_answered |= self._carry_out(action)

    def _carry_out(self, action: dict[str, Any]) -> bool:
        arm, kind = action["arm"], action["kind"]
        if kind == "capture":
            self.tuner.capture_finished(20 * self.eager_s)
            if not self.is_adopted and self.random.random() < 0.3:
                self.tuner.resume(self._earlier_findings())
        elif kind == "compile":
            self.tuner.arm_changed(arm, "compiled", background_seconds=self.work_s[arm])
        elif kind == "load":
            end = self.ends[arm]
            self.tuner.arm_changed(arm, end, "" if end == "ready" else end, foreground_seconds=self.work_s[arm])
        return kind in ("capture", "compile", "load")

    def _earlier_findings(self) -> dict[str, Any]:
        """Findings of an earlier run on a machine of another speed, which must not affect this run's ratios."""
        base = int(1e9 * self.eager_s * 3)
        arms = []
        for name in self.ends:
            runs = [max(1, int(base * self.ratios[name] * self.random.lognormvariate(0, self.sigma))) for _ in range(9)]
            arms.append({"name": name, "verdict": "open", "pairs": [[base, run, base, run] for run in runs]})
        return {"version": 1, "arms": arms}

    def report(self, folder: Path) -> dict[str, Any]:
        tuner = self.tuner.snapshot()
        state = "tuning" if tuner["phase"] != "settled" else "eager" if tuner["current"] == "eager" else "tuned"
        session = SimpleNamespace(
            target=SimpleNamespace(name="Net", parameters=lambda: iter([torch.nn.Parameter(torch.zeros(2))])),
            settings=config.resolve({"mode": self.mode, "cache_dir": folder}),
            state=state,
            current_reason=tuner["reason"],
            plan=tuner["current"],
            regions=[],
            history=self.history,
            optimizers=[],
            wrapper=None,
            tuner_snapshot=lambda: with_facts(tuner, None, False, dict(_NOT_RETAINED), has_database=True),
            note_unseen_steps=lambda: None,
            runner=SimpleNamespace(comparison_state=lambda: None),
        )
        return make_report(session).to_dict()  # type: ignore[arg-type]


def _check_rows(report: dict[str, Any], shown: str) -> int:
    """Checks all rows. Returns how many of them have a ratio."""
    eager_ms = next(plan["step_ms"] for plan in report["plans"] if plan["name"] == "eager")
    rows = [plan for plan in report["plans"] if plan["speedup"] is not None]
    for plan in rows:
        low, high = (plan["speedup"][end] for end in ("low", "high"))
        said = f"{shown}: {plan['name']} takes {plan['step_ms']} ms, eager {eager_ms} ms, interval {low} to {high}"
        assert low * (1 - 1e-9) <= eager_ms / plan["step_ms"] <= high * (1 + 1e-9), said
        assert not plan["cold"], said
    chosen = next((plan for plan in rows if plan["name"] == report["decision"]["chosen"]), None)
    if chosen is not None and report["decision"]["speedup"] is not None:
        assert report["decision"]["speedup"] == pytest.approx(chosen["speedup"]), shown
    return len(rows)


def _check_advice(report: dict[str, Any], shown: str) -> bool:
    """Checks the advice. Returns True if the run is too short for tuning to pay."""
    steps, break_even = report["timeline"]["steps"], report["cost"]["break_even_step"]
    sentences = summary.next_steps(report)
    is_too_short = break_even is not None and break_even > 10 * steps
    if is_too_short:
        assert sentences[0].startswith("Tuning pays only in a run beyond"), f"{shown}: {sentences}"
        assert not any("Keep training" in sentence for sentence in sentences), f"{shown}: {sentences}"
    return is_too_short


@pytest.mark.slow
def test_times_ratios_and_advice_of_random_reports_agree(tmp_path: Path) -> None:
    num_rows = num_short = num_cold = num_resumed = 0
    for seed in range(NUM_REPORTS):
        training = Training(seed)
        training.run(training.random.choice([0, 8, 20, 80, 300, 900]))
        report = training.report(tmp_path)
        shown = f"seed {seed}, {report['timeline']['steps']} steps, {training.mode}"
        num_rows += _check_rows(report, shown)
        num_short += _check_advice(report, shown)
        num_cold += any(plan["cold"] for plan in report["plans"])
        num_resumed += report["decision"]["resumed_pairs"] > 0
    assert min(num_rows, num_short, num_resumed) >= 10 and num_cold >= 3, (num_rows, num_short, num_resumed, num_cold)
