# SPDX-License-Identifier: Apache-2.0
"""PlanCompiles: compiles whole plans in the child process and reports the results to the tuner as states of arms."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from agspeed.backends import candidate
from agspeed.regions.outcome import Outcome
from agspeed.regions.plan import candidate_of
from agspeed.regions.region import Region
from agspeed.regions.state import State
from agspeed.tuning.child.host_compiles import HostCompiles
from agspeed.tuning.child.queue import CompileQueue
from agspeed.tuning.steerable import Steerable
from agspeed.tuning.tuner_config import enabled

if TYPE_CHECKING:
    from agspeed._native import GroupTuner, Tuner


class PlanCompiles:
    """The compiles of one controller, on its thread."""

    def __init__(self, session: Steerable, on_outcome: Callable[[], None]) -> None:
        """on_outcome: called when a candidate may have been rejected or may have failed."""
        host_group = session.rank_sync.connection.host_group if session.rank_sync is not None else None
        host = HostCompiles(host_group) if host_group is not None else None
        self.queue = CompileQueue(lambda: session.options, session.settings, host)
        self._session, self._on_outcome = session, on_outcome

    def prepare_child(self) -> None:
        """In mode="max", starts the child during the capture, so that it has loaded its modules afterwards."""
        if self._session.settings.mode == "max" and any(
            not candidate(name).in_process and candidate(name).unavailable() is None
            for name in enabled(self._session.settings, self._session.options, device=self._session.home.device.type)
        ):
            self.queue.prepare()

    def start(self, tuner: Tuner | GroupTuner, name: str, level: str) -> bool:
        """Starts compiling plan `name`. Returns True if there was nothing to start; the tuner has the outcome then."""
        tuner.arm_changed(name, State.COMPILING)
        foreign = self._foreign(name)
        is_started = foreign and self.queue.start(name, foreign, level) is not None
        self._on_outcome()
        if is_started:
            return False
        failed = self.first_failure(name)
        if failed is not None:
            tuner.arm_changed(name, failed.state, failed.reason)
        else:
            tuner.arm_changed(name, State.COMPILED)
        return True

    def poll(self, tuner: Tuner | GroupTuner) -> None:
        """Reports compiles that the child has finished to the tuner."""
        for batch in self.queue.poll():
            self._on_outcome()
            failed = self.first_failure(batch.name)
            if failed is not None:
                tuner.arm_changed(batch.name, failed.state, failed.reason, background_seconds=batch.seconds)
            else:
                state = State.WAITING if self._is_lacking(batch.name) else State.COMPILED
                tuner.arm_changed(batch.name, state, background_seconds=batch.seconds)

    def first_failure(self, name: str) -> Outcome | None:
        """Returns an outcome to blame if plan `name` has failed for every region, else None."""
        outcomes = [region.outcomes.get(candidate_of(name, region.index)) for region in self._session.regions]
        if any(outcome is None or outcome.state == State.READY for outcome in outcomes):
            return None
        return next((outcome for outcome in outcomes if outcome is not None), None)

    def _is_lacking(self, name: str) -> bool:
        """Returns True if new graphs were captured while plan `name` was being compiled."""
        return any(self.queue.lacks(region, wish) for region, wish in self._foreign(name))

    def _foreign(self, name: str) -> list[tuple[Region, str]]:
        """Returns the (region, candidate) pairs of plan `name` that the child must compile."""
        wanted = [(region, candidate_of(name, region.index)) for region in self._session.regions]
        return [(region, wish) for region, wish in wanted if not candidate(wish).in_process]
