# SPDX-License-Identifier: Apache-2.0
"""Proposes arms that retain memory: "native/retained" is the plan "native" with the allocator that keeps freed blocks.

The allocator helps only steps that have page faults, so they are counted. If the steps of eager, or of the plan that is
about to be decided on, have many, both are tried with the allocator, and so is the best other plan: the time of a plan
that allocates much may change most. The tuner measures these arms like all others, so the allocator stays off unless it
is faster than eager on torch's own.
"""

from __future__ import annotations

import resource
import statistics
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from agspeed.distributed.layouts import layout_of, plan_of
from agspeed.log import logger
from agspeed.regions.plan import EAGER, RETAINED_ARM
from agspeed.regions.state import State
from agspeed.reporting.parts import Json
from agspeed.tuning.memory.retained import RETAINED
from agspeed.tuning.steerable import Steerable

if TYPE_CHECKING:
    from agspeed._native import TunerAction, TunerArmSnapshot

_FAULT_S = 4e-6
"""No page fault takes longer, with the clearing of its page, in the kernel and in a virtual machine's host."""
_LEAST_FAULTS = 256
"""Steps with fewer page faults on average map less than one block that the allocator would keep
(`BlockCache::kSmallest`)."""
_LEAST_SHARE = 0.01
"""The tuner accepts only gains above this share of a step."""
_LEAST_STEPS, _MOST_STEPS = 4, 64
_MAX_RATIO = 1.5
"""The best other plan is tried, unless its steps take more than this times eager's."""


class MemoryArms:
    """The arms of one session that retain memory, on its training thread."""

    def __init__(self, session: Steerable) -> None:
        self._session = session
        is_alone = session.rank_sync is None and session.home.device.type == "cpu"
        self._why_off = "" if is_alone else "only a model that trains alone on the CPU tries it"
        self._faults: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=_MOST_STEPS))
        self._counted: int | None = None  # the process's page faults at the end of the latest step

    def step_ended(self, plan: str, *, is_disturbed: bool) -> str:
        """Counts the page faults of a step with `plan`. Returns the arm's name."""
        arm = f"{plan}/{RETAINED_ARM}" if RETAINED.is_on_for(self) else plan
        if self._why_off:  # the counter is read in the kernel, which costs as much as a small layer
            return arm
        before, self._counted = self._counted, resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        if before is not None and not is_disturbed:
            self._faults[arm].append(self._counted - before)
        return arm

    def steps_unseen(self) -> None:
        """Notes that steps ran since the latest call of `step_ended`."""
        self._counted = None

    def beside(self, decided: str, arms: Iterable[TunerArmSnapshot]) -> list[str]:
        """Returns arms with the allocator that may be better than `decided`; [] if there is nothing left to try.

        Args:
            arms: the tuner's arms, as in its snapshot.
        """
        known = {arm["name"]: arm for arm in arms}
        if self._why_off or layout_of(decided) or any(layout_of(name) == RETAINED_ARM for name in known):
            return []
        if not any(self._may_gain(known[name]) for name in {decided, EAGER} & known.keys()):
            self._why_off = "its steps have too few page faults"
            return []
        if (reason := RETAINED.why_not(self, self._session.settings)) is not None:
            logger.info("%s: memory is not retained: %s", self._session.target.name, reason)
            self._why_off = reason
            return []
        RETAINED.reserve(self, self._session.settings)
        plans = dict.fromkeys([decided, EAGER, *_runners_up(decided, known)])
        return [f"{plan}/{RETAINED_ARM}" for plan in plans]

    def why_not(self, arm: str) -> str | None:
        """Returns why `arm`, an earlier decision, cannot run in this process, or None. It may run from then on."""
        if layout_of(arm) != RETAINED_ARM:
            return None
        reason = self._why_off or RETAINED.why_not(self, self._session.settings)
        if reason is None:
            RETAINED.reserve(self, self._session.settings)
        return reason

    def follow(self, action: TunerAction) -> None:
        """Switches the allocator as an action of the tuner requires."""
        if action["kind"] in ("run", "decide", "rollback"):
            is_wanted = action["kind"] != "rollback" and layout_of(action["arm"]) == RETAINED_ARM
            RETAINED.want(self, is_wanted)

    def describe(self) -> Json:
        """Returns the report's object: the state of the allocator, and page faults of a step without and with it."""
        before: list[float] = []
        after: list[float] = []
        for arm, counts in self._faults.items():
            if len(counts) >= _LEAST_STEPS and plan_of(arm) in (EAGER, self._session.plan):
                (after if layout_of(arm) else before).append(statistics.fmean(counts))
        return {
            **RETAINED.describe(),
            "reason": self._why_off or None,
            "faults_before": max(before, default=None),
            "faults_after": min(after, default=None),
        }

    def close(self) -> None:
        RETAINED.leave(self)

    def _may_gain(self, arm: TunerArmSnapshot) -> bool:
        counts, seconds = self._faults[arm["name"]], arm["seconds"]
        if len(counts) < _LEAST_STEPS or seconds is None:
            return False
        faults = statistics.fmean(counts)  # they come in bursts: most steps may have none
        return faults >= _LEAST_FAULTS and faults * _FAULT_S >= _LEAST_SHARE * seconds["p50"]


def _runners_up(decided: str, arms: Mapping[str, TunerArmSnapshot]) -> list[str]:
    """Returns the best plan beside eager and `decided`, in a list."""
    ratios = {
        name: arm["ratio"]["estimate"]
        for name, arm in arms.items()
        if arm["state"] == State.READY and arm["ratio"] and not layout_of(name) and name not in (decided, EAGER)
    }
    close = [name for name, ratio in ratios.items() if ratio <= _MAX_RATIO]
    return sorted(close, key=lambda name: ratios[name])[:1]
