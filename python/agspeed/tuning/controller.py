# SPDX-License-Identifier: Apache-2.0
"""Carries out the tuner's decisions: turns training steps into its events, and its actions into the session's verbs.

The tuner itself (runtime/tune, C++) is a pure state machine; everything that takes time or touches the world is here:
capture, compiles in the child process, loading and gating, the database, the memory meter. All methods run on the
training thread at the borders of training steps.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

from agspeed import native
from agspeed.distributed.layouts import layout_of, plan_of
from agspeed.distributed.meetings import Meetings
from agspeed.log import logger
from agspeed.tuning.capture_cost import expected_seconds
from agspeed.tuning.company import company, patience
from agspeed.tuning.database_key import TrainingCall
from agspeed.tuning.decision_store import DecisionStore
from agspeed.tuning.interrupted import deferred_signals, hide_own_frames
from agspeed.tuning.layout_arms import LayoutArms
from agspeed.tuning.memory_peaks import METER
from agspeed.tuning.outcome import Outcome, first_passing
from agspeed.tuning.plan import EAGER, candidate_of, candidates_of, refinements
from agspeed.tuning.plan import GRAPH_EAGER as CAPTURE_PLAN
from agspeed.tuning.plan_compiles import PlanCompiles
from agspeed.tuning.ran_step import RanStep
from agspeed.tuning.steerable import Steerable
from agspeed.tuning.tuner_config import enabled, tuner_config
from agspeed.tuning.unfinished import UnfinishedTuning
from agspeed.tuning.waiting import Waiting

_LOAD_PER_CAPTURE = 2.5
"""Compiling and gating a model here takes that many times as long as capturing it, or less."""
_LONGEST_WAIT_S = 600.0
_STANDING_STILL = ("capture", "load", "wait")
"""What training stands still for, at all ranks of a group."""
_searching: weakref.WeakSet[Controller] = weakref.WeakSet()
"""Those of this process that have not decided yet: models of one training loop share what tuning may cost it."""


class Controller:
    """See the module's text. One per session; without the native extension it settles on eager at once."""

    def __init__(self, session: Steerable) -> None:
        self._session = session
        self._module = native.load()
        self._is_capturing = False
        self._num_quiet = 0
        self._skipped = (0, 0.0)
        self._store: DecisionStore | None = None
        self._unfinished = UnfinishedTuning(session)
        self._compiles = PlanCompiles(session, self._unfinished.touch)
        self._layouts = LayoutArms(session.meetings, is_exact=session.settings.numerics == "exact")
        self._regions_seen = 0
        self._is_settled = False
        self._patience = patience(session.settings, session.meetings)
        others_s = self._patience.longest_wait_s if self._patience is not None else _LONGEST_WAIT_S
        self._longest_wait_s = min(_LONGEST_WAIT_S, others_s)
        self._refined: str | None = None
        self._failures: deque[tuple[int, str, str]] = deque()
        self._meter = session.home.meter or METER
        self._company = company(session.settings, session.meetings)
        self._waiting = Waiting(session.target.name, session.settings, lambda: self._tuner.snapshot()["arms"])
        if session.meetings is not None:
            self._tuner = session.meetings.tuner
        elif self._module is not None:
            place = {"max_late": session.home.max_late, "device": session.home.device.type}
            self._tuner = self._module.Tuner(tuner_config(session.settings, session.options, **place))

    # --- called by the session ----------------------------------------------------------------------------------------

    def start(self, num_steps: int, trained_seconds: float, call: TrainingCall) -> None:
        """A training step is about to begin with `call`; `num_steps` were trained before any of this was loaded."""
        if self._module is None:
            self._session.settle(EAGER, native.why_missing())
            return
        started = time.perf_counter()
        _searching.add(self)
        self._meter.acquire(self)
        self._adopt_earlier_decision(call)
        history = self._session.history
        history.start_up_seconds += time.perf_counter() - started
        self._tuner.started(history.start_up_seconds)
        self._tuner.steps_skipped(num_steps, trained_seconds)
        self._advance()

    def ran(self) -> RanStep:
        """What is to be known at the end of a step whose time will be known later only."""
        session = self._session
        is_disturbed = (
            session.runner.take_disturbed() or self._is_capturing or len(session.regions) != self._regions_seen
        )
        return RanStep(self._layouts.named(session.plan), self._meter.take_peak(self), is_disturbed)

    def after_step(self, seconds: float, shape: str, ran: RanStep | None = None) -> int:
        """A training step ended after `seconds` of work on batches of `shape`; ran: noted at its end, else it is now.

        Returns: how many of the steps to come are of no use to the tuner; `steps_unseen` may tell of them instead.
        """
        if self._module is None:
            return 0
        self._take_failures()
        if self._num_quiet > 0 and not self._is_capturing and self._tuner.quiet_steps != 0:
            self.steps_unseen(1, seconds)
            return self._num_quiet
        if self._skipped[0]:
            self._tuner.steps_skipped(*self._skipped)
            self._skipped = (0, 0.0)
        self._report_step(seconds, shape, ran or self.ran())
        self._tuner.share_budget(max(len(_searching), 1))
        self._advance()
        if self._session.meetings is not None:
            self._heed_group(self._session.meetings)
        quiet = self._tuner.quiet_steps
        self._num_quiet = 1 << 30 if quiet is None else int(quiet)
        return self._num_quiet

    def steps_unseen(self, count: int, seconds: float) -> None:
        """`count` steps ran that were of no use, `seconds` in all."""
        self._num_quiet = max(0, self._num_quiet - count)
        self._skipped = (self._skipped[0] + count, self._skipped[1] + seconds)

    def wait(self, timeout_s: float | None) -> None:
        """Waits for compiles in the background."""
        with self._interruptible():
            self._compiles.queue.wait(timeout_s)

    @property
    def activity(self) -> str:
        """What the tuner is doing, as a sentence."""
        return f"{self._tuner.status_reason}{self._company}" if self._module is not None else native.why_missing()

    @property
    def has_database(self) -> bool:
        """True when decisions can be stored."""
        return self._store is not None and self._store.is_usable

    def roll_back(self, region: int, name: str, reason: str) -> None:
        """Candidate `name` raised while it ran a region: plans that need it there are out. Any thread.

        Takes effect at the end of the step, or with `heed_failures`.
        """
        self._failures.append((region, name, reason))

    def heed_failures(self) -> None:
        """Runs another plan from the next forward on where the one in force is out."""
        if self._take_failures():
            self._advance()

    def snapshot(self) -> dict[str, Any]:
        """What the tuner knows and what is kept of it, for the report; {} without the tuner."""
        if self._module is None:
            return {}
        return {**self._tuner.snapshot(), **self._unfinished.shown(), "has_database": self.has_database}

    def close(self) -> None:
        """Ends background work."""
        _searching.discard(self)
        self._unfinished.keep(at_once=True)
        self._unfinished.end()
        self._compiles.queue.close()
        self._meter.release(self)

    # --- events -------------------------------------------------------------------------------------------------------

    def _take_failures(self) -> bool:
        """Tells the tuner of plans whose candidates raised. Returns whether there were any."""
        if self._module is None or not self._failures:
            return False
        while self._failures:
            region, name, reason = self._failures.popleft()
            for arm in self._tuner.snapshot()["arms"]:
                if arm["name"] != EAGER and candidate_of(arm["name"], region) == name:
                    self._tuner.arm_changed(arm["name"], "failed", f"{name} {reason}")
        self._unfinished.touch()
        self._num_quiet = 0
        return True

    def _report_step(self, seconds: float, shape: str, ran: RanStep) -> None:
        session = self._session
        if ran.is_disturbed and self._is_capturing:
            if session.runner.must_capture_again():
                session.history.stood_still("capture", seconds)
                return
            self._is_capturing = False
            session.run_plan(plan_of(self._tuner.current))
            session.history.capture_seconds = seconds
            session.history.stood_still("capture", seconds)
            if session.regions:
                self._tuner.capture_finished(seconds)
                self._unfinished.resume()
                self._tuner.expect_loads(_LOAD_PER_CAPTURE * seconds)
            else:
                why = session.runner.why_nothing_was_captured()
                self._tuner.capture_failed(f"no part of the model could be captured as a graph{why}", seconds)
        else:
            self._tuner.step_finished(ran.arm, max(seconds, 1e-9), shape, ran.peak_bytes, ran.is_disturbed)
            if len(session.regions) != self._regions_seen:
                self._tuner.capture_grew()
                self._unfinished.resume()
        if ran.is_disturbed:
            self._regions_seen = len(session.regions)

    def _advance(self) -> None:
        with self._interruptible():
            self._compiles.poll(self._tuner)
            answered = True
            while answered:
                answered = False
                for action in self._tuner.advance():
                    answered |= self._carry_out(action)
            self._unfinished.keep()

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Training waits for what happens inside: Ctrl-C loses nothing."""
        try:
            yield
        except KeyboardInterrupt as error:
            hide_own_frames(error)
            if not self._is_settled:
                self._unfinished.keep(at_once=True)
                self._waiting.interrupt(self._unfinished.describe())
            raise error.with_traceback(None) from None

    def _heed_group(self, meetings: Meetings) -> None:
        """The group is over, or what was decided is to be looked at again."""
        if self._tuner.is_suspicious:
            meetings.meet_again()
        if self._tuner.is_over_because and not self._is_settled:
            self._is_settled = True
            self._waiting.end(EAGER, self._tuner.is_over_because)
            self._session.settle(EAGER, self._tuner.is_over_because)

    # --- actions ------------------------------------------------------------------------------------------------------

    def _carry_out(self, action: dict[str, Any]) -> bool:
        """Does what the tuner asks. Returns True when something was reported back at once, so that it can go on."""
        arm = action["arm"]
        logger.debug("tuner: %s", action)
        if not self._is_settled:
            self._waiting.show(action["kind"], arm, self._session.regions)
        if self._session.meetings is not None and action["kind"] in _STANDING_STILL:
            self._session.meetings.stand_still(is_capturing=action["kind"] == "capture")
        match action["kind"]:
            case "capture":
                self._session.history.enter_phase("capture")
                self._is_capturing = True
                with deferred_signals():
                    self._session.run_plan(CAPTURE_PLAN)
                self._compiles.prepare_child()
            case "compile":
                return self._start_compile(arm, action["level"])
            case "priority":
                self._compiles.queue.set_level(action["level"])
            case "wait":
                return self._wait_for(arm, action["seconds"])
            case "load":
                with deferred_signals():
                    return self._load(arm, action["seconds"])
            case "run":
                self._session.history.enter_phase("steady" if self._is_settled else "trial")
                self._session.run_plan(plan_of(arm))
            case "refine":
                self._refine(arm)
            case "decide":
                return self._decide(arm, action["reason"])
            case "rollback":
                self._is_settled = True
                self._session.settle(EAGER, action["reason"] + self._company)
                self._store_decision()
        return False

    def _start_compile(self, name: str, level: str) -> bool:
        self._session.history.enter_phase("compile")
        self._unfinished.recall()
        return self._compiles.start(self._tuner, name, level)

    def _wait_for(self, name: str, seconds: float) -> bool:
        if not self._compiles.queue.is_running(name):
            return False
        self._unfinished.keep()
        started = time.perf_counter()
        self._compiles.queue.wait(min(seconds, self._longest_wait_s), name)
        waited = time.perf_counter() - started
        self._session.history.stood_still("compile", waited, name)
        self._tuner.arm_changed(name, "compiling", foreground_seconds=waited)
        self._compiles.poll(self._tuner)
        if self._compiles.queue.is_running(name) and seconds > _LONGEST_WAIT_S:
            self._tuner.arm_changed(name, "failed", f"it was not ready after {_LONGEST_WAIT_S:.0f} s")
        return True

    def _load(self, name: str, limit_s: float) -> bool:
        """Compiles and gates what plan `name` wants here, part by part; the rest is for the next border of a step once
        `limit_s` are over. What takes longer than others can wait is given up where more of it would follow.
        """
        self._unfinished.recall()
        self._unfinished.keep()
        started = begun = time.perf_counter()
        regions, outcomes, too_slow = list(self._session.regions), [], None
        try:
            while regions and not too_slow and begun - started < min(limit_s, self._longest_wait_s):
                outcome = self._session.compile_part(name, regions[0])
                if outcome is not None:
                    outcomes.append(outcome)
                    regions.pop(0)
                seconds, begun = time.perf_counter() - begun, time.perf_counter()
                if self._patience is not None:
                    too_slow = self._patience.why_too_slow(seconds)
        except BaseException as error:  # Ctrl-C, or strict: the tuner must not wait for this candidate
            self._tuner.arm_changed(name, "failed", f"interrupted by {type(error).__name__}")
            raise
        seconds = time.perf_counter() - started
        self._unfinished.touch()
        if regions:
            state = "skipped" if too_slow else "loading"
            self._tuner.arm_changed(name, state, too_slow or "", foreground_seconds=seconds)
            self._meter.take_peak(self)
            return too_slow is not None
        if any(outcome.usable for outcome in outcomes):
            self._tuner.arm_changed(name, "ready", foreground_seconds=seconds)
        else:
            bad = self._compiles.first_failure(name) or Outcome(name, "skipped", "no region to compile")
            self._tuner.arm_changed(name, bad.state, bad.reason, foreground_seconds=seconds)
        self._meter.take_peak(self)  # loading is not part of a step
        return True

    def _decide(self, arm: str, reason: str) -> bool:
        """Settles on `arm`, unless others are worth a look first. A group's tuner asks for that look by itself."""
        if self._session.meetings is None and self._refine(arm):
            return True
        self._is_settled = True
        _searching.discard(self)
        self._unfinished.end(first_passing(self._session.regions, self._tuner.snapshot()["arms"]))
        self._waiting.end(arm, reason)
        self._session.history.enter_phase("steady")
        self._session.settle(arm, reason + self._company)
        self._store_decision()
        self._meter.release(self)
        self._compiles.queue.close()
        return False

    def _refine(self, decided: str) -> bool:
        """Adds plans that may be better than `decided` to the tuner. Returns False when there is none."""
        tuner = self._tuner.snapshot()
        if self._session.settings.mode == "deterministic" or tuner["decision"]["from_database"]:
            return False
        arms, plans = tuner["arms"], []
        if decided != self._refined and not layout_of(decided):
            self._refined = decided
            whole = [region for region in self._session.regions if region.part is None]  # parts are run alike
            plans = refinements(decided, arms, whole)
        plans = plans or self._layouts.beside(decided, arms)
        for plan in plans:
            self._tuner.add_arm(plan)
            self._tuner.arm_changed(plan, "ready")
        return bool(plans)

    # --- database -----------------------------------------------------------------------------------------------------

    def _adopt_earlier_decision(self, call: TrainingCall) -> None:
        settings = self._session.settings
        if settings.mode == "deterministic":
            return
        store = self._store = DecisionStore(settings, call.database_key(settings))
        record = store.find()
        arm = record.get("arm") if record else None
        rows = store.rows() if settings.mode in ("auto", "fast-start") and not arm else []
        self._tuner.expect_capture(expected_seconds(store.key["graph"], call.num_modules(), rows))
        self._unfinished.begin(self._tuner, store, record)
        names = enabled(settings, self._session.options)
        if not arm:
            self._waiting.begin(call.num_modules(), names)
            return
        if lacking := candidates_of(arm) - {EAGER, CAPTURE_PLAN, *names}:
            self._unfinished.note = f"the earlier decision {arm} cannot be used: {min(lacking)} is not enabled here"
            return
        try:
            if arm not in (EAGER, *names):
                self._tuner.add_arm(arm)
            if layout_of(arm) and plan_of(arm) == EAGER:
                self._tuner.arm_changed(arm, "ready")  # nothing has to be compiled
            self._tuner.adopt(arm)
        except ValueError as error:
            logger.debug("the stored decision is not used: %s", error)

    def _store_decision(self) -> None:
        record, tuner = self._tuner.decision_record(), self._tuner.snapshot()
        is_passing = first_passing(self._session.regions, tuner["arms"]) is not None
        if self._store is None or record is None or is_passing or tuner["decision"]["from_database"]:
            return  # how it was measured stands there
        record["capture_seconds"] = self._session.history.capture_seconds
        self._store.store(record)
