# SPDX-License-Identifier: Apache-2.0
"""Connects the tuner to the session: reports training steps to the tuner as events, and carries out its actions.

The tuner itself (runtime/tune, C++) is a pure state machine. This module does everything that takes time or has side
effects: capture, compiles in the child process, loading and gating, the database, the memory meter. All methods run on
the training thread between training steps, except `roll_back`, which any thread may call at any time.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agspeed import native
from agspeed.distributed.layouts import layout_of, plan_of
from agspeed.distributed.rank_sync import RankSync
from agspeed.log import logger
from agspeed.regions.outcome import Outcome, first_passing
from agspeed.regions.plan import EAGER, GRAPH_EAGER, candidate_of, candidates_of
from agspeed.regions.state import State
from agspeed.tuning.capture_cost import LOAD_PER_CAPTURE, expected_seconds
from agspeed.tuning.company import company, stall_limit
from agspeed.tuning.database_key import TrainingCall
from agspeed.tuning.decision_store import DecisionStore
from agspeed.tuning.driver import RanStep, TunerDriver
from agspeed.tuning.interrupted import deferred_signals, hide_own_frames
from agspeed.tuning.layout_arms import LayoutArms
from agspeed.tuning.memory.arms import MemoryArms
from agspeed.tuning.memory.peaks import METER
from agspeed.tuning.plan_compiles import PlanCompiles
from agspeed.tuning.refinements import refinements
from agspeed.tuning.snapshot import with_facts
from agspeed.tuning.steerable import Steerable
from agspeed.tuning.tuner_config import enabled, tuner_of
from agspeed.tuning.unfinished import UnfinishedTuning
from agspeed.tuning.waiting import Waiting

if TYPE_CHECKING:
    from agspeed._native import TunerAction
    from agspeed.tuning.snapshot import TuningSnapshot

_LONGEST_WAIT_S = 600.0
_STANDING_STILL = ("capture", "load", "wait")
"""Actions during which training stands still, at all ranks of a group."""
_searching: weakref.WeakSet[Controller] = weakref.WeakSet()
"""The process's controllers that have not decided yet: all models of a training loop share one tuning budget."""


class Controller:
    """Tunes one session. Without the native extension it settles on eager at once."""

    def __init__(self, session: Steerable) -> None:
        self._session = session
        self._module = native.load()
        self._store: DecisionStore | None = None
        self._unfinished = UnfinishedTuning(session)
        self._compiles = PlanCompiles(session, self._unfinished.touch)
        self._layouts = LayoutArms(session.rank_sync, is_exact=session.settings.numerics == "exact")
        self._memory = MemoryArms(session)
        self._regions_seen, self._is_settled, self._is_capturing = 0, False, False
        self._stall_limit = stall_limit(session.settings, session.rank_sync)
        others_s = self._stall_limit.longest_wait_s if self._stall_limit is not None else _LONGEST_WAIT_S
        self._longest_wait_s = min(_LONGEST_WAIT_S, others_s)
        self._refined: str | None = None
        self._failures: deque[tuple[int, str, str]] = deque()
        self._meter = session.home.meter or METER
        self._company = company(session.settings, session.rank_sync)
        self._waiting = Waiting(session.target.name, session.settings, lambda: self._tuner.snapshot()["arms"])
        if self._module is not None:
            self._tuner = tuner_of(session, self._module)
            self._driver = TunerDriver(self._tuner)

    # --- called by the session ----------------------------------------------------------------------------------------

    def start(self, num_steps: int, trained_seconds: float, call: TrainingCall) -> None:
        """Begins tuning before a training step with `call`; `num_steps` steps ran before tuning was loaded."""
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
        """Returns the facts about a step that must be recorded at its end, for steps whose time is known later."""
        session = self._session
        is_disturbed = (
            session.runner.take_disturbed() or self._is_capturing or len(session.regions) != self._regions_seen
        )
        arm = self._layouts.named(self._memory.step_ended(session.plan, is_disturbed=is_disturbed))
        return RanStep(arm, self._meter.take_peak(self), is_disturbed)

    def after_step(self, seconds: float, shape: str, ran: RanStep | None = None) -> int:
        """Reports a training step of `seconds` on batches of `shape`. ran: its record; None: the step ends right now.

        Returns: how many next steps the tuner does not need; the caller may report them with `steps_unseen` instead.
        """
        if self._module is None:
            return 0
        self._take_failures()
        if self._driver.num_quiet > 0 and not self._is_capturing and self._tuner.quiet_steps != 0:
            self.steps_unseen(1, seconds)
            return self._driver.num_quiet
        self._driver.report_passed()
        self._report_step(seconds, shape, ran or self.ran())
        self._tuner.share_budget(max(len(_searching), 1))
        self._advance()
        if self._session.rank_sync is not None:
            self._heed_group(self._session.rank_sync)
        return self._driver.rest()

    def steps_unseen(self, count: int, seconds: float) -> None:
        """Reports `count` steps that the tuner did not need; they took `seconds` in all."""
        if self._module is not None:
            self._driver.pass_steps(count, seconds)
            self._memory.steps_unseen()

    def wait(self, timeout_s: float | None) -> None:
        """Waits for compiles in the background."""
        with self._interruptible():
            self._compiles.queue.wait(timeout_s)

    @property
    def activity(self) -> str:
        """A sentence about what the tuner is doing."""
        return f"{self._tuner.status_reason}{self._company}" if self._module is not None else native.why_missing()

    def roll_back(self, region: int, name: str, reason: str) -> None:
        """Excludes all plans that run `region` with candidate `name`, which raised there. Any thread.

        Takes effect at the end of the step, or with `heed_failures`.
        """
        self._failures.append((region, name, reason))

    def heed_failures(self) -> None:
        """Switches to another plan from the next forward on if the plan in force has been excluded."""
        if self._take_failures():
            self._advance()

    def snapshot(self) -> TuningSnapshot | None:
        """Returns the tuner's state and what the database keeps of it, for the report; None without the tuner."""
        if self._module is None:
            return None
        kept = self._unfinished
        has_database = self._store is not None and self._store.is_usable
        return with_facts(self._tuner.snapshot(), kept.note, kept.is_passing, self._memory.describe(), has_database)

    def close(self) -> None:
        """Ends background work."""
        _searching.discard(self)
        self._unfinished.keep(at_once=True)
        self._unfinished.end()
        self._compiles.queue.close()
        self._meter.release(self)
        self._memory.close()

    # --- events -------------------------------------------------------------------------------------------------------

    def _take_failures(self) -> bool:
        """Reports plans whose candidates raised to the tuner. Returns whether there were any."""
        if self._module is None or not self._failures:
            return False
        while self._failures:
            region, name, reason = self._failures.popleft()
            for arm in self._tuner.snapshot()["arms"]:
                if arm["name"] != EAGER and candidate_of(arm["name"], region) == name:
                    self._tuner.arm_changed(arm["name"], State.FAILED, f"{name} {reason}")
        self._unfinished.touch()
        self._driver.wake()
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
                self._tuner.expect_loads(LOAD_PER_CAPTURE * seconds)
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
            self._driver.advance(self._carry_out)
            self._unfinished.keep()

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Makes Ctrl-C keep the results of tuning so far, for code during which training waits."""
        try:
            yield
        except KeyboardInterrupt as error:
            hide_own_frames(error)
            if not self._is_settled:
                self._unfinished.keep(at_once=True)
                self._waiting.interrupt(self._unfinished.describe())
            raise error.with_traceback(None) from None

    def _heed_group(self, rank_sync: RankSync) -> None:
        """Reacts to the group's tuner: it may want to check its decision again, or have ended tuning."""
        assert rank_sync.tuner is not None  # this controller reports to it
        if rank_sync.tuner.is_suspicious:
            rank_sync.seek_resync()
        if (reason := rank_sync.tuner.is_over_because) and not self._is_settled:
            self._is_settled = True
            self._waiting.end(EAGER, reason)
            self._session.settle(EAGER, reason)

    # --- actions ------------------------------------------------------------------------------------------------------

    def _carry_out(self, action: TunerAction) -> bool:
        """Carries out one action. Returns True if it reported a result to the tuner, which can then continue."""
        arm = action["arm"]
        logger.debug("tuner: %s", action)
        if not self._is_settled:
            self._waiting.show(action["kind"], arm, self._session.regions)
        self._memory.follow(action)
        if self._session.rank_sync is not None and action["kind"] in _STANDING_STILL:
            self._session.rank_sync.stand_still(is_capturing=action["kind"] == "capture")
        match action["kind"]:
            case "capture":
                self._session.history.enter_phase("capture")
                self._is_capturing = True
                with deferred_signals():
                    self._session.run_plan(GRAPH_EAGER)
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
        self._tuner.arm_changed(name, State.COMPILING, foreground_seconds=waited)
        self._compiles.poll(self._tuner)
        if self._compiles.queue.is_running(name) and seconds > _LONGEST_WAIT_S:
            self._tuner.arm_changed(name, State.FAILED, f"it was not ready after {_LONGEST_WAIT_S:.0f} s")
        return True

    def _load(self, name: str, limit_s: float) -> bool:
        """Compiles and gates the candidates of plan `name` in this process, part by part. After `limit_s` seconds the
        rest waits for the end of the next step. Gives the plan up if a part takes longer than other ranks can wait.
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
                if self._stall_limit is not None:
                    too_slow = self._stall_limit.why_too_slow(seconds)
        except BaseException as error:  # Ctrl-C, or strict=True: the tuner must not wait for this candidate
            self._tuner.arm_changed(name, State.FAILED, f"interrupted by {type(error).__name__}")
            raise
        seconds = time.perf_counter() - started
        self._unfinished.touch()
        if regions:
            state = State.SKIPPED if too_slow else State.LOADING
            self._tuner.arm_changed(name, state, too_slow or "", foreground_seconds=seconds)
            self._meter.take_peak(self)
            return too_slow is not None
        if any(outcome.usable for outcome in outcomes):
            self._tuner.arm_changed(name, State.READY, foreground_seconds=seconds)
        else:
            bad = self._compiles.first_failure(name) or Outcome(name, State.SKIPPED, "no region to compile")
            self._tuner.arm_changed(name, bad.state, bad.reason, foreground_seconds=seconds)
        self._meter.take_peak(self)  # loading is not part of a step
        return True

    def _decide(self, arm: str, reason: str) -> bool:
        """Settles on `arm`, unless refined plans should be measured first. A group's tuner asks for those itself."""
        if self._session.rank_sync is None and self._refine(arm):
            return True
        self._is_settled = True
        _searching.discard(self)
        self._unfinished.end(first_passing(self._outcomes(), self._tuner.snapshot()["arms"]))
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
        decision = tuner["decision"]
        if self._session.settings.mode == "deterministic" or (decision is not None and decision["from_database"]):
            return False
        arms, plans = tuner["arms"], []
        if decided != self._refined and not layout_of(decided):
            self._refined = decided
            whole = [region for region in self._session.regions if region.part is None]  # FSDP units share one plan
            plans = refinements(decided, arms, whole)
        plans = plans or self._layouts.beside(decided, arms) or self._memory.beside(decided, arms)
        for plan in plans:
            self._tuner.add_arm(plan)
            self._tuner.arm_changed(plan, State.READY)
        return bool(plans)

    def _outcomes(self) -> list[Outcome]:
        return [outcome for region in self._session.regions for outcome in region.outcomes.values()]

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
        lacking = candidates_of(arm) - {EAGER, GRAPH_EAGER, *names}
        if reason := f"{min(lacking)} is not enabled here" if lacking else self._memory.why_not(arm):
            self._unfinished.note = f"the earlier decision {arm} cannot be used: {reason}"
            return
        try:
            if arm not in (EAGER, *names):
                self._tuner.add_arm(arm)
            if layout_of(arm) and plan_of(arm) == EAGER:
                self._tuner.arm_changed(arm, State.READY)  # nothing has to be compiled
            self._tuner.adopt(arm)
        except ValueError as error:
            logger.debug("the stored decision is not used: %s", error)

    def _store_decision(self) -> None:
        record, tuner = self._tuner.decision_record(), self._tuner.snapshot()
        is_passing = first_passing(self._outcomes(), tuner["arms"]) is not None
        decision = tuner["decision"]
        if self._store is None or record is None or is_passing or decision is None or decision["from_database"]:
            return  # the database keeps the record of the original measurement
        record["capture_seconds"] = self._session.history.capture_seconds
        self._store.store(record)
