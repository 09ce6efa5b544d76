# SPDX-License-Identifier: Apache-2.0
"""Tunes the fusion of tensors and the order of operations on the user's own steps: HOROVOD_AUTOTUNE=1.

Only rank 0 tunes, because it alone decides how tensors are fused, and no choice changes a result. Each
DistributedOptimizer.step() at rank 0 is one step of runtime/tune's state machine. The machine's arms are plans; the
plan changes only at the end of a step. The tuning database stores the decision, and the next job with the same
gradients and ranks adopts it.

HOROVOD_AUTOTUNE_LOG names a CSV file in Horovod's format. It has a row for each run of a plan; the last row is the best
plan. tensor_fusion_threshold is in MiB, the score in bytes per microsecond. The columns for other features of Horovod
have fixed values.
"""

from __future__ import annotations

import contextlib
import hashlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agspeed import config, files, native
from agspeed.config.paths import DATABASE
from agspeed.errors import AgspeedError
from agspeed.horovod.environment import Options, Placement
from agspeed.log import warn_once
from agspeed.version import __version__

__all__ = ["HEADER", "Autotuner", "Plan", "plans_of"]

HEADER = (
    "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,cycle_time_ms,"
    "tensor_fusion_threshold,score"
)
_MIB = 1 << 20
_THRESHOLDS = tuple(size * _MIB for size in (2, 8, 32, 64))
_ORDERS = ("time", "size", "priority", "model")
_GIVEN = "eager"
"""The state machine's name for its first arm. Here it is the plan from the settings."""
_MAX_ACTIONS = 100


@dataclass(frozen=True)
class Plan:
    fusion_bytes: int
    order: str

    @property
    def name(self) -> str:
        return f"{self.order} {self.fusion_bytes / _MIB:g} MiB"


def plans_of(options: Options) -> dict[str, Plan]:
    """The plans by arm. The first plan comes from the settings. All plans keep values that the user set explicitly."""
    given = Plan(options.fusion_bytes, options.fusion_order)
    thresholds = (given.fusion_bytes,) if options.is_fusion_given else _THRESHOLDS
    others = [Plan(each, given.order) for each in thresholds]
    if not options.is_order_given:
        others += [Plan(given.fusion_bytes, order) for order in _ORDERS]
    return {_GIVEN: given} | {plan.name: plan for plan in others if plan != given}


class Autotuner:
    """Tunes the plan of a job. The job owns it, at rank 0 only. Not thread-safe."""

    def __init__(self, group: Any, where: Placement, options: Options) -> None:
        module: Any = native.load()
        self._group, self._where, self._options = group, where, options
        self._plans = plans_of(options)
        # Plans cost nothing to make, so all of them are ready from the start.
        self._tuner = module.Tuner(
            {"mode": "max", "arms": [name for name in self._plans if name != _GIVEN], "has_spare_cores": True}
        )
        self._arm, self._version = _GIVEN, 0
        self._step_bytes = 0
        self._step_began: float | None = None
        self._samples: list[float] = []
        self._scores: dict[str, list[float]] = {}
        self._log = _Log(options.autotune_log) if options.autotune_log else None
        self._key: dict[str, Any] = {}
        self._database: Any = None

    def step_ended(self, parameters: Sequence[torch.Tensor]) -> None:
        """Reports that all gradients of a step are reduced. The next step may use another plan."""
        now = time.monotonic()
        if self._step_began is None:
            self._begin(parameters)
        else:
            seconds = now - self._step_began
            self._samples.append(seconds)
            self._tuner.step_finished(self._arm, max(seconds, 1e-9))
        self._carry_out()
        self._step_began = time.monotonic()

    def finish(self) -> None:
        """Ends the log with the best plan."""
        self._note_run()
        if self._log is not None and self._scores:
            best = self._arm if self._tuner.phase == "settled" else max(self._scores, key=self._score_of)
            self._log.add(self._plans[best], self._score_of(best))
            self._log.close()

    def _begin(self, parameters: Sequence[torch.Tensor]) -> None:
        self._step_bytes = sum(each.nbytes for each in parameters)
        text = ",".join(f"{tuple(each.shape)}:{each.dtype}" for each in parameters)
        self._key = {
            "graph": f"horovod {hashlib.sha256(text.encode()).hexdigest()}",
            "shapes": [self._step_bytes, len(parameters)],
            "dtypes": sorted({str(each.dtype) for each in parameters}),
            "device": "network",
            "threads": self._where.size,
            "isa": f"{self._where.cross_size} hosts",
            "versions": {"agspeed": __version__},
        }
        with contextlib.suppress(AgspeedError, RuntimeError, ValueError):
            module: Any = native.load()
            database = module.TuningDatabase(str(Path(config.resolve().cache_dir) / DATABASE))
            if database.is_usable:
                self._database = database
                known = database.find(self._key, int(time.time()))
                if known is not None and known["arm"] in self._plans:
                    self._tuner.adopt(known["arm"])

    def _carry_out(self) -> None:
        for _ in range(_MAX_ACTIONS):
            has_answered = False
            for action in self._tuner.advance():
                kind, arm = action["kind"], action["arm"]
                if kind == "capture":
                    self._tuner.capture_finished(0.0)
                elif kind in ("compile", "load", "wait"):
                    self._tuner.arm_changed(arm, "ready")
                elif kind == "run":
                    self._use(arm)
                elif kind == "decide":
                    self._keep_decision()
                has_answered = has_answered or kind in ("capture", "compile", "load", "wait")
            if not has_answered:
                return

    def _use(self, arm: str) -> None:
        if arm == self._arm:
            return
        self._note_run()
        self._arm, self._version = arm, self._version + 1
        plan = self._plans[arm]
        self._group.set_plan(plan.fusion_bytes, plan.order, self._version)

    def _note_run(self) -> None:
        """Scores the current plan by the steps since the last change of the plan."""
        if not self._samples:
            return
        score = self._step_bytes / (1e6 * max(statistics.median(self._samples), 1e-9))
        self._samples.clear()
        self._scores.setdefault(self._arm, []).append(score)
        if self._log is not None:
            self._log.add(self._plans[self._arm], score)

    def _score_of(self, arm: str) -> float:
        return statistics.median(self._scores.get(arm, [0.0]))

    def _keep_decision(self) -> None:
        record = self._tuner.decision_record()
        if self._database is None or record is None:
            return
        try:
            self._database.store(self._key, record, int(time.time()))
        except (AgspeedError, RuntimeError, ValueError) as error:
            warn_once(("horovod", "decision"), f"the decision could not be stored: {error}")


class _Log:
    def __init__(self, path: str) -> None:
        self._file = files.create(path)
        print(HEADER, file=self._file, flush=True)

    def add(self, plan: Plan, score: float) -> None:
        print(f"0,0,0,1,0,{plan.fusion_bytes / _MIB:g},{score:.6g}", file=self._file, flush=True)

    def close(self) -> None:
        self._file.close()
