# SPDX-License-Identifier: Apache-2.0
"""EarnedStart: decides when to load the tuner: after enough training, or at once if an earlier decision needs it."""

from __future__ import annotations

from pathlib import Path

from agspeed.distributed.rank_sync import RankSync
from agspeed.frontend import startup
from agspeed.frontend.target import UserCall
from agspeed.tuning.driver import RanStep
from agspeed.tuning.stored_decision import chose_compiled


class EarnedStart:
    """Replaces a session's controller until that is loaded. One per session, on its training thread."""

    def __init__(self, target: UserCall, cache_dir: Path) -> None:
        self.num_steps, self.seconds = 0, 0.0
        """Training steps so far, and their time."""
        self.rank_sync: RankSync | None = None
        """The rank sync of ranks that begin to tune together, as soon as tuning is due at one of them."""
        self._target, self._cache_dir = target, cache_dir

    def is_due(self) -> bool:
        """Returns whether tuning may begin: training has paid for loading it, or it need not be paid for."""
        if startup.has_machinery() or self.seconds >= startup.PAYS_AFTER_S:
            return True
        return self.num_steps == 0 and chose_compiled(self._target, self._cache_dir)

    def ran(self) -> None:
        """Called at the end of a step. Does nothing: only the step's time matters here."""

    def after_step(self, seconds: float, shape: str, ran: RanStep | None) -> int:
        """Reports a training step of `seconds`. Returns: how many next steps need not be reported one by one."""
        self.steps_unseen(1, seconds)
        return int((startup.PAYS_AFTER_S - self.seconds) * self.num_steps / self.seconds)

    def steps_unseen(self, count: int, seconds: float) -> None:
        """Reports `count` steps that took `seconds` in all."""
        self.num_steps += count
        self.seconds += seconds

    @property
    def activity(self) -> str:
        """The session's present activity, as a sentence."""
        if self.num_steps == 0:
            return "waiting for the first training step"
        if self.rank_sync is not None:
            return (
                f"{self.rank_sync.group.size} ranks tune together, once training has paid for it at the first of them"
            )
        return "training has been too short so far to pay for tuning"
