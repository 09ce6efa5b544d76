# SPDX-License-Identifier: Apache-2.0
"""PlanRunner: holds a target and the regions captured from it, and runs the target with the selected plan.

The plan "eager" runs the untouched target. Any other plan runs the captured target: each region runs with the plan's
candidate, or eagerly if the candidate is not usable. If torch.compile owns capture, a plan switches only the regions.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from agspeed.backends.base import CompileOptions
from agspeed.config import Settings
from agspeed.errors import AgspeedError
from agspeed.frontend.target import Target, UserCall
from agspeed.frontend.weak_calls import weakly
from agspeed.regions.plan import EAGER, candidate_of
from agspeed.regions.state import REFUSED, State
from agspeed.reporting.parts import Json
from agspeed.tuning.interrupted import deferred_signals

if TYPE_CHECKING:
    from agspeed.backends.checkpointing import Repetition
    from agspeed.frontend.capture import Capture, CaptureEvent
    from agspeed.frontend.shadow.comparison import Comparison
    from agspeed.regions.outcome import Outcome
    from agspeed.regions.region import Region
    from agspeed.regions.run_beside import RunBeside


class PlanRunner:
    """The plan runner of one session, on its training thread. Owns regions and captures."""

    def __init__(
        self,
        target: Target,
        dynamic: bool | None,
        *,
        on_capture_event: Callable[[CaptureEvent], None],
        on_new_region: Callable[[Region], None],
        on_call: Callable[[Region, Sequence[object]], None],
        on_failure: Callable[[Region, str, BaseException], None],
        on_wanted: Callable[[], None],
    ) -> None:
        """Args:
        on_wanted: called when the next call must go through `run`, because a frame must be captured.
        on_new_region: called with each region before its first call.
        on_call, on_failure: see `Region`.
        """
        self.regions: list[Region] = []
        self.current: UserCall = target.eager
        """The callable that runs a call of the target now."""
        self._target, self._dynamic = target, dynamic
        self._on_capture_event, self._on_new_region = on_capture_event, on_new_region
        self._on_call, self._on_failure = weakly(on_call), weakly(on_failure)
        self._on_wanted = on_wanted
        self._captures: list[Capture] = []
        self._run_captured: UserCall | None = None
        self._plan, self._is_observed = EAGER, False
        self._run_beside: RunBeside | None = None
        self.comparison: Comparison | None = None
        """Compares captured graphs with the target's own code; None before the first capture."""
        weakref.finalize(self, _close, self.regions).atexit = False

    def tries_plans(self) -> bool:
        """Returns whether plans are being tried, so that steps may take longer than later ones."""
        return self._is_observed

    def run(self, args: Any, kwargs: Any) -> object:
        """Runs a training call of the target. The call may be compared with the target's own code."""
        if self._plan == EAGER or self.comparison is None:
            return self.current(*args, **kwargs)
        if self.comparison.passes_by():
            return self.current(*args, **kwargs)
        return self.comparison.call(self._captured(), args, kwargs)

    @property
    def is_proven(self) -> bool:
        """Whether calls may go directly to `current`, without `run`."""
        return self._plan == EAGER or self.comparison is None or self.comparison.is_proven

    def step_ended(self) -> str | None:
        """Ends the comparison's step. Returns: why captured code must not run, if a comparison found a difference."""
        if self.comparison is None:
            return None
        self.comparison.step_ended()
        return self.comparison.finding

    def note_steps(self, count: int) -> None:
        """Reports `count` steps that ran without a call of `step_ended`."""
        if self.comparison is not None:
            self.comparison.note_steps(count)

    def take_disturbed(self) -> bool:
        """Returns whether calls since the last query deviated from the plan: because they were compared, or because
        the comparison was still due."""
        return self.comparison is not None and self.comparison.take_disturbed()

    def comparison_state(self) -> Json | None:
        """Returns the comparison's state for the report; None before the first capture."""
        return self.comparison.state() if self.comparison is not None else None

    def must_capture_again(self) -> bool:
        """Returns whether the capture in the latest step was incomplete."""
        return self._target.has_untouched_eager and (self.comparison is None or self.comparison.was_ended)

    def select(self, plan: str, *, observed: bool) -> None:
        """Runs `plan` from the next call on. observed: see `Region.select`."""
        self._plan, self._is_observed = plan, observed
        if self._target.has_untouched_eager:
            self.current = self._target.eager if plan == EAGER else self._captured()
            self._target.switch_parts(captured=plan != EAGER)
        if plan != EAGER or not self._target.has_untouched_eager:
            for region in self.regions:
                region.select(candidate_of(plan, region.index), observed=observed)

    def add_region(self, gm: fx.GraphModule, part: str | None = None, repeated: Sequence[Repetition] = ()) -> Region:
        """Makes a region from a graph that agspeed or torch.compile captured. part, repeated: see `Region`."""
        from agspeed.frontend.machinery import Region

        region = Region(len(self.regions), gm, self._on_call, self._on_failure, part=part, repeated=repeated)
        if part is not None:
            region.twin = next((other for other in self.regions if other.key == region.key), None)
        self.regions.append(region)
        if self._run_beside is not None:
            region.shadow(self._run_beside)
        self._on_new_region(region)
        return region

    def compile_part(self, region: Region, plan: str, options: CompileOptions, settings: Settings) -> Outcome | None:
        """Runs the next part of compiling and gating the candidate of `plan` for `region`. Returns None while more
        parts are left.

        Raises: see `Session.compile_part`.
        """
        from agspeed.frontend.machinery import build_in_parts

        name = candidate_of(plan, region.index)
        if name not in region.outcomes:
            parts = region.unfinished.pop(name, None) or build_in_parts(name, region, options)
            with deferred_signals():  # an exception of the user's signal handler must not count against the candidate
                try:
                    next(parts)
                except StopIteration as end:
                    region.outcomes[name] = end.value
                else:
                    region.unfinished[name] = parts
                finally:
                    region.forget_originals()
        if name not in region.outcomes:
            return None
        outcome = region.outcomes[name]
        faults = (State.FAILED,) if settings.numerics == "exact" else REFUSED
        if settings.strict and outcome.state in faults:
            raise AgspeedError(f"{outcome.candidate}: {outcome.reason} (raised because strict is set)")
        return outcome

    def _captured(self) -> UserCall:
        if self._run_captured is None:
            from agspeed.frontend.machinery import Comparison

            module: Any = getattr(self._target, "module", None)
            self.comparison = Comparison(
                module, self._target.eager, weakly(self._shadow), self._on_wanted, weakly(self._say_left)
            )
            if (why := self._target.runs_once) is not None:
                self.comparison.prevent(why)
            self._run_captured = self._target.captured(self._capture)
        return self._run_captured

    def why_nothing_was_captured(self) -> str:
        """Returns a clause in parentheses for the end of a sentence; "" if no frame gave a reason."""
        left = next((capture.left_silently for capture in self._captures if capture.left_silently), None)
        return f" ({left.where}: {left.reason})" if left is not None else ""

    def _say_left(self, what: str) -> None:
        from agspeed.frontend.machinery import CaptureEvent

        self._on_capture_event(CaptureEvent("skipped", what, self._captures[0].home))

    def _shadow(self, run_beside: RunBeside | None) -> None:
        """Switches all regions, including regions captured later, to a run beside the real one; None: switches back."""
        self._run_beside = run_beside
        for region in self.regions:
            region.shadow(run_beside)

    def _capture(self, function: UserCall, part: str | None) -> UserCall:
        from agspeed.frontend.machinery import Capture, repetitions

        assert self.comparison is not None

        def make_region(gm: fx.GraphModule) -> UserCall:
            return self.add_region(gm, part, repetitions(gm)).dispatcher

        capture = Capture(function, make_region, self._on_capture_event, self._dynamic, self.comparison)
        self._captures.append(capture)
        return capture.call


def _close(regions: list[Region]) -> None:
    for region in regions:
        region.close()
