# SPDX-License-Identifier: Apache-2.0
"""Session: the state and the control of one optimized target.

A session runs the target by a *plan*: "eager" (the untouched target) or a name made of candidates (`regions/plan.py`).
With the latter the captured target runs, each region with its candidate, or eagerly if the candidate is not usable. A
`Controller` decides which plan the next step runs. The session executes plans, owns capture, regions and the history.

The session manages training forwards of the thread that called ``optimize``. All other calls run the user's code
untouched: other threads while tuning, forwards without gradients, forwards under tracing or export.

In mode="auto" the controller is loaded only after training has paid for loading it (`earned_start.py`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from agspeed.backends.base import CompileOptions
from agspeed.config import Settings
from agspeed.devices import placement
from agspeed.distributed.layouts import plan_of
from agspeed.errors import AgspeedError
from agspeed.frontend import startup
from agspeed.frontend.earned_start import EarnedStart
from agspeed.frontend.history import History
from agspeed.frontend.home import EndedStep, Home
from agspeed.frontend.mistakes import leave_to_watchers
from agspeed.frontend.optimizers.search import SEARCH
from agspeed.frontend.optimizers.session import OptimizerSession
from agspeed.frontend.plan_runner import PlanRunner
from agspeed.frontend.step_sampler import StepSampler
from agspeed.frontend.steps import StepClock, StepTimes
from agspeed.frontend.target import CompiledFramesTarget, FunctionTarget, Target, UserCall, owner_of
from agspeed.frontend.untrained import TrainingWatch
from agspeed.log import logger, warn_once
from agspeed.regions.plan import EAGER, candidate_of
from agspeed.torch_compat import misfits
from agspeed.torch_compat.modes import is_watched
from agspeed.torch_compat.modules import is_traced
from agspeed.tuning.database_key import TrainingCall, shape_class
from agspeed.tuning.together import are_known, surroundings

if TYPE_CHECKING:
    from agspeed.distributed.rank_sync import RankSync
    from agspeed.distributed.wrapper import Wrapper
    from agspeed.frontend.capture import CaptureEvent
    from agspeed.regions.outcome import Outcome
    from agspeed.regions.region import Region
    from agspeed.tuning.controller import Controller
    from agspeed.tuning.deferred_regions import DeferredRegions
    from agspeed.tuning.snapshot import TuningSnapshot


class Session:
    """The session of one target. `live_sessions.py` opens it on the thread that trains."""

    def __init__(self, target: Target, settings: Settings, write_report: Callable[[Session], None]) -> None:
        """write_report: writes the session's report if its settings ask for one; does not raise."""
        if settings.mode != "auto" or not target.has_untouched_eager:
            startup.load_machinery()
        begun = time.perf_counter()
        self.target, self.settings = target, settings
        self.owner, self.is_closed = os.getpid(), False
        self.options = CompileOptions.of(settings, torch.get_num_threads())
        self.wrapper: Wrapper | None = None
        self.rank_sync: RankSync | None = None
        self.optimizers: list[OptimizerSession] = []
        self.history = History()
        self.plan, self.state, self.reason = EAGER, "tuning", ""
        self._controller: Controller | None = None
        self._deferred: DeferredRegions | None = None
        self._write_report = write_report
        self._earned = EarnedStart(target.eager, settings.cache_dir)
        self._learner: EarnedStart | Controller = self._earned
        self._refused: AgspeedError | None = None  # an error to raise at the end of the step
        self.clock = StepClock(target.parameters, self._step_ended)
        self._sampler = StepSampler(self.clock)
        self.runner = PlanRunner(
            target,
            settings.dynamic,
            on_capture_event=self._on_capture_event,
            on_new_region=self._on_new_region,
            on_call=self._on_region_call,
            on_failure=self._on_region_failure,
            on_wanted=self._sampler.interrupt,
        )
        self.regions = self.runner.regions
        self.home = Home(target, self.clock)
        self._watch = TrainingWatch(target, self.clock)
        self._shapes: list[str] = []
        self._is_paused = self._is_left = False
        SEARCH.add(self)
        self.clock.start()
        self._install(self._managed_call)
        self.history.start_up_seconds = time.perf_counter() - begun

    @property
    def current_reason(self) -> str:
        """The reason for the state, as a sentence; while tuning, the tuner's activity."""
        reason = self._learner.activity if self.state == "tuning" else self.reason
        return f"{reason}; {self.history.lost}" if self.history.lost else reason

    # --- plans --------------------------------------------------------------------------------------------------------

    def run_plan(self, plan: str) -> None:
        """Runs `plan` from the next forward on. Calls stay managed (timed, switchable)."""
        self.runner.select(plan, observed=self.state == "tuning")
        self.plan = plan

    def settle(self, arm: str, reason: str, level: int = logging.INFO) -> None:
        """Ends tuning with `arm`, logged at `level`. Eager leaves the target as it was; others keep a thin entry."""
        for region in self.regions:
            region.release_sample()
        self.plan, self._is_left = plan_of(arm), arm == EAGER
        self.runner.select(self.plan, observed=False)
        self.state, self.reason = ("eager" if self.plan == EAGER else "tuned"), reason
        logger.log(level, "%s: %s (%s)", self.target.name, self.plan, reason)
        if self._is_left or not self.target.has_untouched_eager:
            self._sampler.end()
            self.clock.stop()
        if self._is_left:
            self._end_background_work()
        self._install(
            self.target.eager_entry()
            if self._is_left
            else self._sampler.entry(self.target, self.runner, self._run_seen)
        )
        self.save_report()

    def save_report(self) -> None:
        """Writes the report if the setting ``report`` names a path."""
        self._write_report(self)

    def compile_part(self, plan: str, region: Region) -> Outcome | None:
        """Runs the next part of compiling and gating the candidate of `plan` for `region`, in the foreground. Returns
        None while more parts are left.

        Raises: AgspeedError if ``strict=True`` and the candidate failed or was rejected. Under numerics="exact" a
        rejection does not raise.
        """
        begun = time.perf_counter()
        outcome = self.runner.compile_part(region, plan, self.options, self.settings)
        self.history.compiled(candidate_of(plan, region.index), outcome, time.perf_counter() - begun)
        return outcome

    def candidate_for(self, region: Region) -> str:
        """Returns the candidate with which the plan in force runs `region`."""
        return candidate_of(self.plan, region.index)

    def adopt_region(self, region: Region) -> None:
        """Adds a region that was captured after the decision to the plan, once its compile has succeeded or failed."""
        region.select(self.candidate_for(region))
        region.release_sample()

    def wait(self, timeout_s: float | None) -> None:
        """Waits for compiles in the background, each group of them for at most `timeout_s`."""
        if self._controller is not None and self._deferred is not None:
            self._controller.wait(timeout_s)
            self._deferred.wait(timeout_s)

    def note_unseen_steps(self) -> None:
        """Counts the steps that the sampler let pass unobserved."""
        self._skip_steps(*self._sampler.take_unseen())

    def close(self) -> None:
        """Undoes everything: afterwards the target is as it was before ``optimize``."""
        if self.rank_sync is not None:
            self.rank_sync.leave("the model was restored there")
        self._end_background_work()
        self._sampler.end()
        self.clock.stop()
        self.target.uninstall()
        SEARCH.end(self)
        self.state, self.reason, self.plan, self.is_closed = "eager", "restored", EAGER, True

    def set_paused(self, is_paused: bool) -> None:
        """Pauses or resumes the session. While paused, the target runs eagerly with any plan."""
        self._is_paused = is_paused
        self.target.install(self.target.eager_entry() if is_paused else self._entry, self)

    def tuner_snapshot(self) -> TuningSnapshot | None:
        """Returns the tuner's state for the report; None without a tuner."""
        return self._controller.snapshot() if self._controller is not None else None

    def _end_background_work(self) -> None:
        for worker in (self._controller, self._deferred):
            if worker is not None:
                worker.close()

    # --- calls of the target ------------------------------------------------------------------------------------------

    def _managed_call(self, *args: Any, **kwargs: Any) -> object:
        """Runs a call of the target while tuning."""
        if not self._is_training_call():
            return self.target.eager(*args, **kwargs)
        if self._sampler.forwards_left > 0:
            self._sampler.forwards_left -= 1
            return self.runner.current(*args, **kwargs)
        if self.home.is_capturing():
            return self.target.eager(*args, **kwargs)
        self._resume()
        if (reason := self.home.why_eager(lambda: placement.call_tensors(args, kwargs))) is not None:
            self._leave_to_eager(reason)
            return self.target.eager(*args, **kwargs)
        self.clock.forward_begins()
        if self._controller is None and self._is_due():
            self._start(args, kwargs)
        return self._run_timed(args, kwargs)

    def _run_timed(self, args: Any, kwargs: Any) -> object:
        """Runs the current plan. Requires: the clock has recorded the beginning of the forward."""
        self._shapes.append(shape_class(args, kwargs))
        if not isinstance(self.target, FunctionTarget):
            output = self.runner.run(args, kwargs)
            self._find_wrapper()
            self.clock.forward_ends()
            return output
        try:
            return self.runner.run(args, kwargs)
        finally:
            self.clock.function_ends()

    def _start(self, args: Any, kwargs: Any) -> None:
        """Loads and starts the controller within a training call. The controller may decide what this call runs."""
        if reason := self.home.why_eager(self.target.tensors) or self.home.why_not_wrapped(self.wrapper):
            self._leave_to_eager(reason)
            return
        if (reason := startup.why_not_loaded()) is not None:
            self._leave_to_eager(reason, unfit=True)
            return
        from agspeed.frontend.machinery import Controller, DeferredRegions

        for step in self.home.settle_down():
            self._learn(step)
        self._controller, self._deferred = Controller(self), DeferredRegions(self)
        self._learner = self._controller
        self.history.start_up_seconds += startup.claim()
        call = TrainingCall(self.target.eager, args, kwargs, self.wrapper, self.home.device)
        self._controller.start(self._earned.num_steps, self._earned.seconds, call)
        self.history.stood_still("start-up", self.clock.restart())

    def _is_due(self) -> bool:
        """Returns, within a training call, whether tuning may begin. In a group it begins at all ranks at once."""
        self._find_wrapper()
        if self.rank_sync is not None and self.rank_sync.refused is not None:
            self._leave_to_eager(self.rank_sync.refused)
        if self.state != "tuning" or not are_known(self.target):
            return False
        return self._earned.is_due() if self.rank_sync is None else self.rank_sync.may_begin(self._earned.is_due())

    def _find_wrapper(self) -> None:
        """Finds the wrapper around the target, which is known only during a call or at the end of the first call."""
        if self.rank_sync is not None and self.state == "tuning" and (reason := self.rank_sync.why_replaced()):
            self._leave_to_eager(reason)
        elif self.wrapper is None and self.state == "tuning" and (reason := misfits.of_ranks()):
            self._leave_to_eager(reason, unfit=True)
        elif self.wrapper is None and self.state == "tuning":
            self.wrapper, self.options, self.rank_sync = surroundings(
                self.target, self.settings, self.options, self._sampler.interrupt, self.runner.tries_plans
            )
            self._earned.rank_sync = self.rank_sync

    def _leave_to_eager(self, reason: str, *, unfit: bool = False) -> None:
        """Leaves a target that cannot be tuned to eager, and informs the user and the other ranks. unfit: because of
        this torch."""
        if self.rank_sync is not None and self.rank_sync.refused is None:
            self.rank_sync.leave(reason)
        if self.state != "eager":
            self.settle(EAGER, reason, logging.INFO if unfit else logging.WARNING)
        if unfit:
            misfits.tell(self.target.name, reason, strict=self.settings.strict)

    def _is_training_call(self) -> bool:
        may_train = not is_traced() and self.clock.is_own_thread() and self.target.trains_now()
        return may_train and not (is_watched() and leave_to_watchers(self.target.name))

    def _run_seen(self, args: Any, kwargs: Any) -> object:
        """Runs a call after the decision that the clock must time."""
        if self.home.is_capturing() or not self.clock.is_own_thread():
            return self.runner.current(*args, **kwargs)
        self._resume()
        self.clock.forward_begins()
        return self._run_timed(args, kwargs)

    def _install(self, entry: UserCall) -> None:
        self._entry = self._watch.around(entry)
        if not self._is_paused:
            self.target.install(self._entry, self)

    # --- capture ------------------------------------------------------------------------------------------------------

    def adopt_graph(self, gm: fx.GraphModule, example_inputs: Sequence[object]) -> UserCall:
        """Adds a graph that torch.compile captured to this session. Returns the callable that runs it."""
        assert isinstance(self.target, CompiledFramesTarget)
        self.target.remember(example_inputs)
        region = self.runner.add_region(gm)
        region.select(self.plan, observed=self.state == "tuning")
        return region.dispatcher

    def _on_new_region(self, region: Region) -> None:
        if (reason := self.home.why_eager(lambda: placement.graph_tensors(region.gm))) is not None:
            region.select(EAGER)
            self._leave_to_eager(reason)

    def _on_region_call(self, region: Region, args: Sequence[Any]) -> None:
        if isinstance(self.target, CompiledFramesTarget) and self.state == "tuning":
            self._frame_called(args)
        if self.state == "tuned" and self.candidate_for(region) not in region.outcomes:
            assert self._deferred is not None  # a controller chose the plan in force
            self._deferred.add(region)
            self._sampler.interrupt()

    def _frame_called(self, args: Sequence[Any]) -> None:
        """Handles a call of a region in a torch.compile session, which counts as a call of the target."""
        if not self._is_training_call() or self.home.is_capturing():
            return
        assert isinstance(self.target, CompiledFramesTarget)
        self.target.remember(args)
        self.clock.forward_begins()
        if self._controller is None:
            self._find_wrapper()
            self._start(args, {})
        self._shapes.append(shape_class(args, {}))

    def _on_region_failure(self, region: Region, candidate: str, error: BaseException) -> None:
        reason = region.outcomes[candidate].reason
        self.history.add_fallback(region.where, f"{candidate}: {reason}")
        if self._controller is not None:
            self._controller.roll_back(region.index, candidate, reason)
            self._sampler.interrupt()
            if self.state == "tuned" and not self.target.has_parts:
                self._heed_failures()
        if self.settings.strict:
            raise AgspeedError(f"region {region.index} ({region.where}): {candidate} failed at run time") from error

    def _on_capture_event(self, event: CaptureEvent) -> None:
        self.history.add_capture_event(event.kind, event.reason, event.where)
        if event.kind == "skipped":
            left = f"{event.where} runs eagerly: {event.reason}"
            warn_once(("skipped", event.where), left)
            if self.settings.strict:  # raise later: Dynamo would swallow the exception here
                self._refused = AgspeedError(f"{left} (raised because strict is set)")
                self._sampler.interrupt()

    # --- steps --------------------------------------------------------------------------------------------------------

    def _step_ended(self, times: StepTimes) -> None:
        if self._refused is not None:
            refused, self._refused = self._refused, None
            raise refused
        if (reason := self.runner.step_ended()) is not None and self.state != "eager":
            self._leave_to_eager(reason)
            if self.settings.strict:
                raise AgspeedError(f"{self.target.name}: {reason} (raised because strict is set)")
        shape, self._shapes = "|".join(self._shapes), []
        if self._sampler.is_first_step():
            self._skip_steps(1, times.busy)
            return
        for ended in self.home.known_steps(EndedStep(self.plan, times, shape, self._learner.ran()), self._skip_steps):
            self._learn(ended)

    def _learn(self, step: EndedStep) -> None:
        """Reports an ended step to the controller: the latest step or, on a GPU, one shortly before it."""
        self.history.add_step(step.plan, step.times)
        num_quiet = self._learner.after_step(step.times.busy, step.shape, step.ran)
        if self.state == "tuned" and self._deferred is not None:
            self._deferred.advance()
        may_skip = not self._is_left and self.target.has_untouched_eager and self._watch.is_over
        if may_skip and self.runner.is_proven and (self._deferred is None or self._deferred.is_idle):
            self._sampler.skip(num_quiet, step.times.forwards, self.history)

    def _skip_steps(self, count: int, seconds: float) -> None:
        self.history.timeline.skip(count)
        self.runner.note_steps(count)
        self._learner.steps_unseen(count, seconds)

    def _resume(self) -> None:
        """Resumes observation before a forward that must be observed."""
        if self._sampler.is_skipping and self.clock.is_own_thread():
            self.note_unseen_steps()
            self._sampler.resume()
            self._heed_failures()

    def _heed_failures(self) -> None:
        """Switches to another plan if a candidate of the plan in force has raised, even in the middle of a step."""
        if self._controller is not None and self.clock.is_own_thread():
            self._controller.heed_failures()


def session_of(target: object) -> Session | None:
    """Returns the session of an optimized module or step function, or None."""
    owner = owner_of(target)
    return owner if isinstance(owner, Session) else None
