# SPDX-License-Identifier: Apache-2.0
"""The numerics gate: no candidate is used before `check` has accepted it.

`check` runs a region three ways on private copies of real inputs: eagerly, in float64, and through the candidate. It
compares every output, every gradient and every input that the region changes. It compares numbers (`compare` has the
rule), positions of NaN and infinities when the inputs contain them (`extremes`), element types, shapes, strides,
devices, gradient flags, and memory shared between results and inputs. It also detects results that a later call
overwrites, and a different use of the random generators. It leaves the training process's tensors, gradients,
generators and modes unchanged. One thread. It costs a few eager steps (`Verdict.seconds`), and
`Policy.memory_budget_bytes` limits its memory.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from agspeed.devices.random_state import RandomState, devices_of
from agspeed.log import logger
from agspeed.regions.layouts import Layouts
from agspeed.reporting.parts import Json
from agspeed.tuning.gate.compare import Deviation, TensorError, compare, compare_exactly, deviation
from agspeed.tuning.gate.extremes import extremes_problem
from agspeed.tuning.gate.facts import facts_problem, gradient_problem, layouts_to_mend
from agspeed.tuning.gate.figures import readable, severity, summarize
from agspeed.tuning.gate.inputs import InputCopies, finest_eps, nbytes, other_data
from agspeed.tuning.gate.modes import DrawRecorder, NoReferenceError, Promoted, undisturbed
from agspeed.tuning.gate.noise import Noisy
from agspeed.tuning.gate.run import GRADIENT, Region, Run, Tangents, execute, make_tangents, promoted


@dataclass(frozen=True)
class Policy:
    """How strictly, and at what cost, to check.

    numerics: "standard" compares errors with eager's own errors; "exact" requires equal bits; "off" accepts unchecked.
    memory_budget_bytes: limit for the estimated allocation of the float64 run; None for no limit.
    seed: seeds the tangents and perturbations.
    gradients: also check gradients, if gradients are enabled and an output is differentiable.
    is_steady: eager gives the same bits at each run. If False, as on a GPU, eager runs twice, and the difference counts
        as its error.
    """

    numerics: str = "standard"
    memory_budget_bytes: int | None = None
    seed: int = 0
    gradients: bool = True
    is_steady: bool = True


@dataclass(frozen=True)
class Verdict:
    """The result of `check`. ``outcome`` is "passed", "rejected" or "not-run"; ``reason`` is one sentence."""

    outcome: str
    reason: str
    numerics: str
    seconds: float
    reference: str = "none"
    """Errors are measured against this: "float64", "eager (<why>)" if the graph cannot run in float64, or "none"."""
    forward: tuple[TensorError, ...] = ()
    gradients: tuple[TensorError, ...] = ()
    layouts: Layouts = field(default_factory=dict)
    """Layouts that would give the outputs eager's strides, if strides are the only difference (`LaidOut`)."""

    @property
    def accepted(self) -> bool:
        return self.outcome == "passed"

    def to_dict(self) -> Json:
        """The report's "gate" object."""
        return {
            "verdict": self.outcome,
            "numerics": self.numerics,
            "reason": self.reason,
            "forward": summarize(self.forward),
            "gradients": summarize(self.gradients),
            "optimizer": None,
        }


def check(candidate: Region, reference: Region, inputs: Sequence[object], policy: Policy = Policy()) -> Verdict:
    """Decides whether `candidate` may replace `reference`.

    Args:
        candidate, reference: ``region(*inputs) -> outputs``; reference is the captured graph, run eagerly.
        inputs: flat arguments; tensors are copied, never changed.
        policy: see `Policy`. The check runs under the gradient mode and autocast state in force.

    Returns: a Verdict. Exceptions of the candidate become rejections; only KeyboardInterrupt and the like propagate.
    """
    started = time.perf_counter()
    if policy.numerics == "off":
        return Verdict("passed", 'accepted unchecked because numerics="off"', "off", 0.0)
    judge = _Judge(candidate, reference, inputs, policy)
    try:
        with undisturbed(devices_of(inputs)):
            judge.judge()
        outcome, reason = "passed", judge.summary()
    except _RejectedError as rejection:
        outcome, reason = "rejected", str(rejection)
    except _NotRunError as refusal:
        outcome, reason = "not-run", str(refusal)
    seconds = time.perf_counter() - started
    errors = tuple(judge.forward), tuple(judge.gradients)
    return Verdict(outcome, reason, policy.numerics, seconds, judge.kind, *errors, judge.layouts)


class _RejectedError(Exception):
    """The candidate is not used; the message is the reason."""


class _NotRunError(Exception):
    """No comparison was possible; the message is the reason."""


class _Judge:
    """One check: runs, compares, and keeps the errors found."""

    def __init__(self, candidate: Region, reference: Region, inputs: Sequence[object], policy: Policy) -> None:
        self._candidate = candidate
        self._graph = reference if isinstance(reference, fx.GraphModule) else None
        # Calling the GraphModule itself would print a traceback if the graph raises, which it may on float64 inputs.
        self._reference: Region = reference if self._graph is None else self._graph.forward
        self._inputs = inputs
        self._policy = policy
        self._devices = devices_of(inputs)
        self._wide: Run | None = None
        self._noise: list[_Deviations] = []
        self._again: Run | None = None
        self._unsteady: set[str] = set()
        self.kind = "none"
        self.forward: list[TensorError] = []
        self.gradients: list[TensorError] = []
        self.layouts: Layouts = {}

    def judge(self) -> None:
        """Raises `_RejectedError` or `_NotRunError` unless the candidate agrees.

        The candidate is called three times: with the inputs, with other data, and with the inputs again. The first
        call's backward runs after the second call. Its results must be intact after the third.
        """
        self._random = RandomState(self._devices)
        self._eager = self._run_eagerly()
        if not self._policy.is_steady:
            self._random.restore()
            self._again = execute(self._reference, InputCopies(self._inputs), self._tangents)
        first = self._run_candidate(0, between=self._call_with_other_data)
        self._reject_overwritten(first)
        self._compare(first, 0)
        again = self._run_candidate(1)
        self._reject_overwritten(first)
        self._compare(again, 1)
        arguments = self._candidate, self._reference, self._inputs, self._tangents, self._random, self._policy.seed + 2
        problem = extremes_problem(*arguments)
        self._reject(problem and self._shown(problem))

    def summary(self) -> str:
        found = (*self.forward, *self.gradients)
        if not found:
            return "the region has no numbers to compare"
        if self._policy.numerics == "exact":
            return f"all {len(found)} outputs and gradients equal eager's bit for bit"
        worst = max(found, key=severity)
        return (
            f"within tolerance against {self.kind}: worst RMS error {worst.rms:.1e} in {worst.name}, "
            f"eager's own is {worst.eager_rms:.1e}"
        )

    def _run_eagerly(self) -> Run:
        """Runs the reference in its own precision. Also determines tangents, random draws and the memory estimate."""
        self._check_budget(4 * nbytes(self._inputs))
        recorder = DrawRecorder(self._devices)
        self._tangents: list[Tangents] = []

        def tangents(results: Sequence[object]) -> Sequence[Tangents]:
            self._random_after = RandomState(self._devices)
            if self._policy.gradients:
                self._tangents = make_tangents(results, self._policy.seed)
            return self._tangents

        try:
            run = execute(self._reference, InputCopies(self._inputs), tangents, modes=[recorder])
        except NoReferenceError as error:
            raise _NotRunError(str(error)) from None
        except Exception as error:
            raise _NotRunError(f"eager itself raised {type(error).__name__}: {_first_line(error)}") from None
        self._draws, self._unsteady = recorder.draws, recorder.unsteady
        self._check_budget(recorder.promoted_bytes + 4 * nbytes(self._inputs))
        return run

    def _wobble(self, names: Sequence[str], turn: int) -> dict[str, list[Deviation]]:
        """Returns how far eager's second run is from its first, by tensor. Omits equal tensors."""
        if self._again is None:
            return {}
        first, again = self._eager.numbers(turn), self._again.numbers(turn)
        other = [name for name in names if name in again and compare_exactly(name, again[name], first[name]).problem]
        return {name: [deviation(again[name], first[name], first[name])] for name in other}

    def _check_budget(self, needed: int) -> None:
        budget = self._policy.memory_budget_bytes
        if budget is not None and self._policy.numerics == "standard" and needed > budget:
            raise _NotRunError(
                f"checking against float64 needs about {needed / 2**20:.0f} MiB, "
                f"more than the memory budget of {budget / 2**20:.0f} MiB"
            )

    def _run_candidate(self, turn: int, between: Callable[[], None] | None = None) -> Run:
        chosen = self._tangents[turn : turn + 1]

        def tangents(results: Sequence[object]) -> Sequence[Tangents]:
            return chosen if all(_is_differentiable(results, index) for one in chosen for index in one) else ()

        self._random.restore()
        try:
            return execute(self._candidate, InputCopies(self._inputs), tangents, between=between)
        except _RejectedError:
            raise
        except Exception as error:
            raise _RejectedError(f"it raised {type(error).__name__}: {_first_line(error)}") from None

    def _call_with_other_data(self) -> None:
        """Calls the candidate with other data and ignores the results. The call before must keep its results."""
        if RandomState(self._devices) != self._random_after:
            raise _RejectedError("it draws other random numbers than eager, or another number of them")
        generator = torch.Generator().manual_seed(self._policy.seed + 1)
        data = InputCopies(self._inputs, change=lambda flat, like: other_data(flat, like, generator)).values
        try:
            self._candidate(*InputCopies(data).values)
        except Exception as error:
            if _runs(self._reference, data):
                raise _RejectedError(f"on other data it raised {type(error).__name__}, eager does not") from None

    def _compare(self, run: Run, turn: int) -> None:
        """Compares outputs and changed inputs, and the gradients for the turn's set of tangents."""
        eager, exact = self._eager, self._policy.numerics == "exact"
        self.layouts = layouts_to_mend(run.facts, eager.facts)
        self._reject(facts_problem(run.facts, eager.facts))
        self._reject(_mutation_problem(run, eager))
        mine, theirs = run.numbers(0), eager.numbers(turn)
        if run.gradients:
            self._reject(gradient_problem(run.gradients[0], eager.gradients[turn], zeros_for_none=turn > 0))
        names = [name for name in mine if name in theirs]
        wobble = self._wobble(names, turn)
        if exact and wobble:
            culprits = ", ".join(sorted(self._unsteady)) or "an operator of the graph"
            raise _RejectedError(
                f"eager's own bits differ from run to run in {self._shown(next(iter(wobble)))} ({culprits}): "
                "no candidate can equal them"
            )
        if exact:
            errors = [compare_exactly(name, mine[name], theirs[name]) for name in names]
        else:
            errors = self._errors_against_float64(names, mine, theirs, turn, wobble)
        if turn == 0:
            self.forward = [error for error in errors if not error.name.startswith(GRADIENT)]
            self.gradients = [error for error in errors if error.name.startswith(GRADIENT)]
        worst = max(errors, key=severity, default=None)
        if worst is not None and not worst.ok:
            raise _RejectedError(f"{self._shown(worst.name)} {worst.problem}")

    def _errors_against_float64(
        self,
        names: Sequence[str],
        mine: dict[str, torch.Tensor],
        theirs: dict[str, torch.Tensor],
        turn: int,
        wobble: dict[str, list[Deviation]],
    ) -> list[TensorError]:
        if self._wide is None:
            self._wide = self._run_in_float64()
        wide = theirs | self._wide.numbers(turn)
        errors = [compare(name, mine[name], theirs[name], wide[name], wobble.get(name, ())) for name in names]
        # Eager's error may be small by chance: measure how far rounding moves these results at all.
        for runs in range(1, _NOISE_RUNS + 1):
            refused = [
                error for error in errors if not error.ok and (runs == 1 or self._is_amplified(error.name, turn))
            ]
            if not refused or (runs > 2 and max(map(severity, refused))[1] > _HOPELESS):
                break
            noise = [_of_turn(each, turn) for each in self._first_noise(runs, self._wide)]
            again = {
                error.name: wobble.get(error.name, []) + [each[error.name] for each in noise if error.name in each]
                for error in refused
            }
            errors = [
                compare(name, mine[name], theirs[name], wide[name], again[name]) if name in again else error
                for name, error in zip(names, errors, strict=True)
            ]
        return errors

    def _is_amplified(self, name: str, turn: int) -> bool:
        """Returns whether rounding moves this tensor so far that one noisy run is too few."""
        first = _of_turn(self._noise[0], turn).get(name)
        return first is not None and first.steps > _AMPLIFIED

    def _first_noise(self, count: int, wide: Run) -> list[_Deviations]:
        """Returns how far rounding noise moves the results, in `count` runs."""
        while len(self._noise) < count:
            noisy = self._run_noisily(wide, len(self._noise))
            turns = range(max(len(self._tangents), 1))
            self._noise.append([_deviations(noisy, self._eager, wide, turn) for turn in turns])
        return self._noise[:count]

    def _run_in_float64(self) -> Run:
        """Runs the reference in float64. Returns eager's own run if the graph cannot run in float64."""
        self._random.restore()
        try:
            copies = InputCopies(self._inputs, promote=True)
            run = execute(self._reference, copies, promoted(self._tangents), modes=[Promoted(self._draws)])
            self.kind = "float64"
            return run
        except Exception as error:
            self.kind = f"eager (in float64 the graph raises {type(error).__name__}: {_first_line(error)})"
            return self._eager

    def _run_noisily(self, wide: Run, number: int) -> Run:
        """Runs the reference with rounding noise of the inputs' precision. Returns `wide` if that run fails."""
        is_wide = wide is not self._eager
        noise = Noisy(finest_eps(self._inputs), self._policy.seed + 2 + number)
        copies = InputCopies(self._inputs, promote=is_wide, change=lambda flat, like: noise.shaken(flat))
        tangents = promoted(self._tangents) if is_wide else self._tangents
        modes = [Promoted(self._draws), noise] if is_wide else [noise]
        self._random.restore()
        try:
            return execute(self._reference, copies, tangents, modes=modes)
        except Exception:
            logger.debug("the reference cannot be run with rounding noise", exc_info=True)
            return wide

    def _shown(self, name: str) -> str:
        """Returns a tensor's name, with the graph's own name for an input in parentheses."""
        number = re.search(r"input (\d+)", name)
        if number is None or self._graph is None:
            return name
        node = self._graph.graph.find_nodes(op="placeholder")[int(number[1])]
        return name.replace(number[0], f"{number[0]} ({readable(node.name)})")

    def _reject_overwritten(self, run: Run) -> None:
        name = run.overwritten()
        self._reject(name and f"{name} of one call is overwritten by a later call")

    def _reject(self, problem: str | None) -> None:
        if problem is not None:
            raise _RejectedError(problem)


_NOISE_RUNS = 6
"""The most noisy runs. A single run can move all results by multiples of one random number that happens to be small."""
_AMPLIFIED = 8.0
"""Results that one run moves by fewer steps than this are well-conditioned: one noisy run is enough for them."""
_HOPELESS = 8.0
"""Errors of this many times their bound after two runs do not come from rounding."""

_Deviations = list[dict[str, Deviation]]
"""The deviations of one noisy run: for each set of tangents, {tensor name: deviation}."""


def _of_turn(deviations: _Deviations, turn: int) -> dict[str, Deviation]:
    return deviations[min(turn, len(deviations) - 1)]


def _deviations(noisy: Run, eager: Run, wide: Run, turn: int) -> dict[str, Deviation]:
    theirs, near = eager.numbers(turn), noisy.numbers(turn)
    exact = theirs | wide.numbers(turn)
    return {name: deviation(near[name], theirs[name], exact[name]) for name in theirs if name in near}


def _mutation_problem(mine: Run, theirs: Run) -> str | None:
    extra = sorted(mine.mutated.keys() - theirs.mutated.keys())
    missing = sorted(theirs.mutated.keys() - mine.mutated.keys())
    if extra:
        return f"it changes input {extra[0]}, which eager leaves alone"
    return f"it does not change input {missing[0]}, which eager changes" if missing else None


def _runs(region: Region, data: Sequence[object]) -> bool:
    try:
        region(*InputCopies(data).values)
    except Exception:
        return False
    return True


def _is_differentiable(results: Sequence[Any], index: int) -> bool:
    return index < len(results) and isinstance(results[index], torch.Tensor) and results[index].requires_grad


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"
