# SPDX-License-Identifier: Apache-2.0
"""Session: everything agspeed knows and does about one optimized target.

A session runs the target by a *plan*: "eager" (the untouched target) or a name made of candidates (`tuning/plan.py`),
which runs the captured target, each region with its candidate where that is usable and eagerly where not. A
`Controller` decides which plan the next step runs; the session executes plans, owns capture and regions, and keeps the
record for the report.

Training forwards of the thread that called ``optimize`` are managed. Everything else runs the user's code untouched:
other threads while tuning, forwards without gradients, forwards under tracing or export.

In mode="auto" a session only watches the clock at first: the controller, and all it needs, comes when training has paid
for loading it (`startup.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx._symbolic_trace import is_fx_symbolic_tracing

from agspeed.backends.base import CompileOptions
from agspeed.config import Settings
from agspeed.errors import AgspeedError
from agspeed.frontend import startup
from agspeed.frontend.history import History
from agspeed.frontend.optimizer import OptimizerSession, pause_optimizers
from agspeed.frontend.step_sampler import StepSampler
from agspeed.frontend.steps import StepClock, StepTimes
from agspeed.frontend.target import CompiledFramesTarget, FunctionTarget, Target
from agspeed.log import logger, warn_once
from agspeed.tuning.database_key import database_key, shape_class
from agspeed.tuning.plan import candidate_of
from agspeed.tuning.stored_decision import chose_compiled

if TYPE_CHECKING:
    from agspeed.frontend.capture import Capture, CaptureEvent
    from agspeed.frontend.region import Region
    from agspeed.tuning.controller import Controller
    from agspeed.tuning.deferred_regions import DeferredRegions
    from agspeed.tuning.outcome import Outcome

EAGER = "eager"
_TRUSTED = 16
"""Steps that each recent one may stand for unseen."""

_live: weakref.WeakSet[Session] = weakref.WeakSet()
_pauses = 0


class Session:
    """See the module's text. Created by ``optimize`` on the thread that trains."""

    def __init__(self, target: Target, settings: Settings) -> None:
        if settings.mode != "auto" or not target.has_untouched_eager:
            startup.load_machinery()
        begun = time.perf_counter()
        self.target = target
        self.settings = settings
        self.owner = os.getpid()
        self.options = CompileOptions(
            num_threads=torch.get_num_threads(),
            numerics=settings.numerics,
            cache_dir=str(settings.cache_dir),
            dynamic=settings.dynamic,
        )
        self.regions: list[Region] = []
        self.optimizer: OptimizerSession | None = None
        self.history = History()
        self.plan = EAGER
        self.state, self.reason = "tuning", "waiting for the first training step"
        self._capture: Capture | None = None
        self._controller: Controller | None = None
        self._deferred: DeferredRegions | None = None
        self._trained = (0, 0.0)
        self._refused: AgspeedError | None = None  # to be raised at the end of the step
        self._current: Callable[..., Any] = target.eager
        self.clock = StepClock(target.parameters, self._step_ended)
        self._sampler = StepSampler(self.clock)
        self._first_call: tuple[Any, Any] = ((), {})
        self._shapes: list[str] = []
        self._key: dict[str, Any] | None = None
        _live.add(self)
        self.clock.start()
        self._install(self._managed_call)
        self.history.start_up_seconds = time.perf_counter() - begun

    @property
    def current_reason(self) -> str:
        """Why the state is what it is, as a sentence; while tuning, what the tuner is doing."""
        return self._controller.activity if self.state == "tuning" and self._controller else self.reason

    # --- plans --------------------------------------------------------------------------------------------------------

    def run_plan(self, plan: str) -> None:
        """Runs `plan` from the next forward on; the session stays managed (timed, switchable)."""
        self._select(plan, observed=self.state == "tuning")
        self.plan = plan

    def settle(self, plan: str, reason: str) -> None:
        """Ends tuning with `plan`. Eager leaves the target as it was given; a compiled plan keeps a light entry."""
        for region in self.regions:
            region.release_sample()
        self._select(plan, observed=False)
        self.plan = plan
        self.state, self.reason = ("eager" if plan == EAGER else "tuned"), reason
        logger.info("%s: %s (%s)", self.target.name, plan, reason)
        if plan == EAGER or not self.target.has_untouched_eager:
            self._sampler.end()
            self.clock.stop()
        if plan == EAGER:
            self._end_background_work()
        self._install(self._eager_entry() if plan == EAGER else self._compiled_entry())
        self.save_report()

    def save_report(self) -> None:
        """Writes the report where ``report=`` asks for one. A failure is a warning: training matters more."""
        if self.settings.report is None:
            return
        from agspeed.frontend.session_report import make_report

        try:
            make_report(self).save(self.settings.report)
        except Exception as error:
            warn_once(("report", str(self.settings.report)), f"the report could not be written: {error}")

    def compile_regions(self, plan: str, regions: list[Region] | None = None) -> list[Outcome]:
        """Compiles and gates what `plan` wants for every region that has not been tried with it yet. Foreground.

        Raises: AgspeedError when ``strict=True`` and a candidate failed or was rejected; under numerics="exact" other
        bits than eager's are what most candidates are expected to give, and no fault.
        """
        from agspeed.frontend.machinery import build

        outcomes = []
        for region in self.regions if regions is None else regions:
            name = candidate_of(plan, region.index)
            if name not in region.outcomes:
                region.outcomes[name] = build(name, region, self.options)
            outcomes.append(region.outcomes[name])
        self._raise_if_strict(outcomes)
        return outcomes

    def candidate_for(self, region: Region) -> str:
        """The candidate that the plan in force runs `region` with."""
        return candidate_of(self.plan, region.index)

    def adopt_region(self, region: Region) -> None:
        """A region captured after the decision has been compiled, or found impossible to: it joins the plan."""
        region.select(self.candidate_for(region))
        region.release_sample()

    def database_key(self) -> dict[str, Any]:
        """The tuning database's key of this session, made at its first training call."""
        if self._key is None:
            self._key = database_key(self.target.eager, *self._first_call, self.settings)
        return self._key

    def wait(self, timeout_s: float | None) -> None:
        """Waits for compiles in the background, each group of them for at most `timeout_s`."""
        if self._controller is not None and self._deferred is not None:
            self._controller.wait(timeout_s)
            self._deferred.wait(timeout_s)

    def note_unseen_steps(self) -> None:
        """Counts the steps that a settled session let pass without looking at them."""
        self._skip_steps(*self._sampler.take_unseen())

    def num_modules(self) -> int:
        """How large the target is, roughly; 0 for functions."""
        owner = getattr(self.target.eager, "__self__", None)
        return sum(1 for _ in owner.modules()) if isinstance(owner, torch.nn.Module) else 0

    def close(self) -> None:
        """Undoes everything: the target is as it was before ``optimize``."""
        self._end_background_work()
        self._sampler.end()
        self.clock.stop()
        self.target.uninstall()
        if self.optimizer is not None:
            self.optimizer.close()
        self.state, self.reason, self.plan = "eager", "restored", EAGER
        _live.discard(self)

    def tuner_snapshot(self) -> dict[str, Any]:
        """What the tuner knows, for the report; {} without one."""
        return self._controller.snapshot() if self._controller is not None else {}

    @property
    def has_database(self) -> bool:
        """True when decisions can be stored."""
        return self._controller is not None and self._controller.has_database

    def _end_background_work(self) -> None:
        if self._controller is not None and self._deferred is not None:
            self._controller.close()
            self._deferred.close()

    # --- calls of the target ------------------------------------------------------------------------------------------

    def _managed_call(self, *args: Any, **kwargs: Any) -> Any:
        """Entry while tuning."""
        if not self._is_training_call():
            return self.target.eager(*args, **kwargs)
        if self._sampler.forwards_left > 0:
            self._sampler.forwards_left -= 1
            return self._current(*args, **kwargs)
        self._resume()
        self._shapes.append(shape_class(args, kwargs))
        self.clock.forward_begins()
        if self._controller is None and self._is_due():
            self._start(args, kwargs)
        if not isinstance(self.target, FunctionTarget):
            output = self._current(*args, **kwargs)
            self.clock.forward_ends()
            return output
        try:
            return self._current(*args, **kwargs)
        finally:
            self.clock.function_ends()

    def _is_due(self) -> bool:
        """Tuning may begin: it need not be earned, or has been."""
        if startup.has_machinery() or self._trained[1] >= startup.PAYS_AFTER_S:
            return True
        return self._trained[0] == 0 and chose_compiled(self.target.eager, self.settings.cache_dir)

    def _start(self, args: Any, kwargs: Any) -> None:
        """A training call of a session that is due: the controller may decide what it runs."""
        try:
            startup.load_machinery()
        except Exception as error:
            self.settle(EAGER, f"what tunes could not be loaded: {type(error).__name__}: {error}")
            return
        from agspeed.frontend.machinery import Controller, DeferredRegions

        self._first_call = (args, kwargs)
        self._controller, self._deferred = Controller(self), DeferredRegions(self)
        self.history.start_up_seconds += startup.claim()
        self._controller.start(*self._trained)
        self._first_call = ((), {})
        self.clock.restart()

    def _is_training_call(self) -> bool:
        if _is_traced() or not self.clock.is_own_thread():
            return False
        return isinstance(self.target, FunctionTarget) or torch.is_grad_enabled()

    def _eager_entry(self) -> Callable[..., Any]:
        eager = self.target.eager

        def run_eagerly(*args: Any, **kwargs: Any) -> Any:
            return eager(*args, **kwargs)

        return run_eagerly

    def _compiled_entry(self) -> Callable[..., Any]:
        eager, clock, sampler = self.target.eager, self.clock, self._sampler
        is_grad_enabled = torch.is_grad_enabled

        def run_compiled(*args: Any, **kwargs: Any) -> Any:
            if not is_grad_enabled() or _is_traced():
                return eager(*args, **kwargs)
            if sampler.forwards_left > 0:
                sampler.forwards_left -= 1
                return self._current(*args, **kwargs)
            self._resume()
            clock.forward_begins()
            output = self._current(*args, **kwargs)
            clock.forward_ends()
            return output

        def run_compiled_function(*args: Any, **kwargs: Any) -> Any:
            if sampler.forwards_left > 0:
                sampler.forwards_left -= 1
                return self._current(*args, **kwargs)
            self._resume()
            clock.forward_begins()
            try:
                return self._current(*args, **kwargs)
            finally:
                clock.function_ends()

        return run_compiled_function if isinstance(self.target, FunctionTarget) else run_compiled

    def _install(self, entry: Callable[..., Any]) -> None:
        def call(*args: Any, **kwargs: Any) -> Any:
            return entry(*args, **kwargs)

        self._entry = call if entry == self._managed_call else entry  # a bound method takes no attributes
        if not _pauses:
            self.target.install(self._entry, self)

    # --- capture ------------------------------------------------------------------------------------------------------

    def _captured(self) -> Callable[..., Any]:
        from agspeed.frontend.machinery import Capture

        if self._capture is None:
            self._capture = Capture(self.target.eager, self._make_region, self._on_capture_event, self.settings.dynamic)
        return self._capture.call

    def _make_region(self, gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        from agspeed.frontend.machinery import Region

        region = Region(len(self.regions), gm, self._on_region_call, self._on_region_failure)
        self.regions.append(region)
        return region.dispatcher  # type: ignore[no-any-return]

    def adopt_graph(self, gm: fx.GraphModule) -> Callable[..., Any]:
        """A graph captured by somebody else (torch.compile) joins this session; returns what is to be called."""
        dispatcher = self._make_region(gm, [])
        self.regions[-1].select(self.plan, observed=True)
        return dispatcher

    def _on_region_call(self, region: Region, args: Sequence[Any]) -> None:
        if isinstance(self.target, CompiledFramesTarget) and self.state == "tuning":
            self._frame_called(args)
        if self.state == "tuned" and self.candidate_for(region) not in region.outcomes:
            assert self._deferred is not None  # the plan that runs was chosen by a controller
            self._deferred.add(region)
            self._sampler.interrupt()

    def _frame_called(self, args: Sequence[Any]) -> None:
        """A region of a torch.compile session runs: the nearest thing to a call of the target."""
        assert isinstance(self.target, CompiledFramesTarget)
        if not self._is_training_call():
            return
        self.target.remember(args)
        self.clock.forward_begins()
        if self._controller is None:
            self._start(args, {})
        self._shapes.append(shape_class(args, {}))

    def _on_region_failure(self, region: Region, candidate: str, error: BaseException) -> None:
        self.history.add_fallback(region.where, f"{candidate}: {region.outcomes[candidate].reason}")
        if self.settings.strict:
            raise AgspeedError(f"region {region.index} ({region.where}): {candidate} failed at run time") from error

    def _on_capture_event(self, event: CaptureEvent) -> None:
        self.history.add_capture_event(event.kind, event.reason, event.where)
        if event.kind == "skipped":
            left = f"{event.where} runs eagerly: {event.reason}"
            warn_once(("skipped", event.where), left)
            if self.settings.strict:  # Dynamo would swallow it here
                self._refused = AgspeedError(f"{left} (raised because strict is set)")
                self._sampler.interrupt()

    # --- steps --------------------------------------------------------------------------------------------------------

    def _step_ended(self, times: StepTimes) -> None:
        if self._refused is not None:
            refused, self._refused = self._refused, None
            raise refused
        shape, self._shapes = "|".join(self._shapes), []
        if self._sampler.is_first_step():
            self._skip_steps(1, times.busy)
            return
        self.history.add_step(self.plan, times)
        num_quiet = self._learn_from_step(times.busy, shape)
        if self.state == "tuned" and self._deferred is not None:
            self._deferred.advance()
        if self.state == "eager" or not self.target.has_untouched_eager:
            return
        if num_quiet > 0 and (self._deferred is None or self._deferred.is_idle):
            num_quiet = min(num_quiet, _TRUSTED * len(self.history.recent))
            self._sampler.skip(num_quiet, times.forwards, self.history.typical_step_seconds())

    def _learn_from_step(self, seconds: float, shape: str) -> int:
        """Returns: of the steps to come, how many need not be seen."""
        if self._controller is not None:
            return self._controller.after_step(seconds, shape)
        self._add_trained(1, seconds)
        self.reason = "training has been too short so far to pay for tuning"
        return int((startup.PAYS_AFTER_S - self._trained[1]) / self.history.typical_step_seconds())

    def _add_trained(self, count: int, seconds: float) -> None:
        """Steps before there was a controller."""
        self._trained = (self._trained[0] + count, self._trained[1] + seconds)

    def _skip_steps(self, count: int, seconds: float) -> None:
        self.history.timeline.skip(count)
        if self._controller is not None:
            self._controller.steps_unseen(count, seconds)
        else:
            self._add_trained(count, seconds)

    def _resume(self) -> None:
        """A forward is to be seen."""
        if self._sampler.is_skipping and self.clock.is_own_thread():
            self.note_unseen_steps()
            self._sampler.resume()

    def _select(self, plan: str, *, observed: bool) -> None:
        if self.target.has_untouched_eager:
            self._current = self.target.eager if plan == EAGER else self._captured()
        if plan != EAGER or not self.target.has_untouched_eager:
            for region in self.regions:
                region.select(candidate_of(plan, region.index), observed=observed)

    def _raise_if_strict(self, outcomes: list[Outcome]) -> None:
        faults = {"failed"} if self.settings.numerics == "exact" else {"failed", "rejected"}
        bad = [outcome for outcome in outcomes if outcome.state in faults] if self.settings.strict else []
        if bad:
            raise AgspeedError(f"{bad[0].candidate}: {bad[0].reason} (raised because strict is set)")


def _is_traced() -> bool:
    """Somebody else is reading the model: torch.compile, torch.export, torch.fx or torch.jit.trace."""
    return torch.compiler.is_compiling() or torch._C._is_tracing() or is_fx_symbolic_tracing()  # type: ignore[no-untyped-call]


@atexit.register
def _save_reports() -> None:
    for session in list(_live):
        if os.getpid() == session.owner:
            session.save_report()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Runs every optimized target eagerly inside the block."""
    global _pauses
    _pauses += 1
    if _pauses == 1:
        pause_optimizers(True)
        for session in list(_live):
            session.target.install(session._eager_entry(), session)
    try:
        yield
    finally:
        _pauses -= 1
        if _pauses == 0:
            pause_optimizers(False)
            for session in list(_live):
                session.target.install(session._entry, session)


__all__ = ["EAGER", "Session", "paused"]
