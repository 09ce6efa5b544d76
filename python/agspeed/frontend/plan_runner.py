# SPDX-License-Identifier: Apache-2.0
"""PlanRunner: a target, the regions captured from it, and which plan its next call runs.

The plan "eager" runs the untouched target. Any other runs the captured target, each region with the plan's candidate
where that is usable and eagerly where not. Where somebody else owns capture (torch.compile) only the regions switch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from agspeed.backends.base import CompileOptions
from agspeed.config import Settings
from agspeed.errors import AgspeedError
from agspeed.frontend.target import Target
from agspeed.frontend.weak_calls import weakly
from agspeed.tuning.plan import EAGER, candidate_of

if TYPE_CHECKING:
    from agspeed.backends.checkpointing import Repetition
    from agspeed.frontend.capture import Capture, CaptureEvent
    from agspeed.frontend.region import Region
    from agspeed.tuning.outcome import Outcome


class PlanRunner:
    """See the module's text. One per session, on its training thread; owns regions and capture."""

    def __init__(
        self,
        target: Target,
        dynamic: bool | None,
        *,
        on_capture_event: Callable[[CaptureEvent], None],
        on_new_region: Callable[[Region], None],
        on_call: Callable[[Region, Sequence[Any]], None],
        on_failure: Callable[[Region, str, BaseException], None],
    ) -> None:
        """Arguments:
        on_new_region: told about each region before its first call.
        on_call, on_failure: see `Region`.
        """
        self.regions: list[Region] = []
        self.current: Callable[..., Any] = target.eager
        """What a call of the target is to run now."""
        self._target, self._dynamic = target, dynamic
        self._on_capture_event, self._on_new_region = on_capture_event, on_new_region
        self._on_call, self._on_failure = weakly(on_call), weakly(on_failure)
        self._captures: list[Capture] = []
        self._run_captured: Callable[..., Any] | None = None
        weakref.finalize(self, _close, self.regions).atexit = False

    def select(self, plan: str, *, observed: bool) -> None:
        """Runs `plan` from the next call on. observed: see `Region.select`."""
        if self._target.has_untouched_eager:
            self.current = self._target.eager if plan == EAGER else self._captured()
            self._target.switch_parts(captured=plan != EAGER)
        if plan != EAGER or not self._target.has_untouched_eager:
            for region in self.regions:
                region.select(candidate_of(plan, region.index), observed=observed)

    def add_region(self, gm: fx.GraphModule, part: str | None = None, repeated: Sequence[Repetition] = ()) -> Region:
        """A graph was captured, by us or by torch.compile. part, repeated: see `Region`."""
        from agspeed.frontend.machinery import Region

        region = Region(len(self.regions), gm, self._on_call, self._on_failure, part=part, repeated=repeated)
        if part is not None:
            region.twin = next((other for other in self.regions if other.key == region.key), None)
        self.regions.append(region)
        self._on_new_region(region)
        return region

    def compile_part(self, region: Region, plan: str, options: CompileOptions, settings: Settings) -> Outcome | None:
        """The next part of compiling and gating what `plan` wants for `region`; None while more are left.

        Raises: see `Session.compile_part`.
        """
        from agspeed.frontend.machinery import build_in_parts

        name = candidate_of(plan, region.index)
        if name not in region.outcomes:
            parts = region.unfinished.pop(name, None) or build_in_parts(name, region, options)
            try:
                next(parts)
            except StopIteration as end:
                region.outcomes[name] = end.value
            else:
                region.unfinished[name] = parts
                return None
        outcome = region.outcomes[name]
        faults = {"failed"} if settings.numerics == "exact" else {"failed", "rejected"}
        if settings.strict and outcome.state in faults:
            raise AgspeedError(f"{outcome.candidate}: {outcome.reason} (raised because strict is set)")
        return outcome

    def _captured(self) -> Callable[..., Any]:
        if self._run_captured is None:
            self._run_captured = self._target.captured(self._capture)
        return self._run_captured

    def _capture(self, function: Callable[..., Any], part: str | None) -> Callable[..., Any]:
        from agspeed.frontend.machinery import Capture, repetitions

        def make_region(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
            return self.add_region(gm, part, repetitions(gm)).dispatcher  # type: ignore[no-any-return]

        capture = Capture(function, make_region, self._on_capture_event, self._dynamic)
        self._captures.append(capture)
        return capture.call


def _close(regions: list[Region]) -> None:
    for region in regions:
        region.close()
