# SPDX-License-Identifier: Apache-2.0
"""EarnedStart: whether training has paid for loading what tunes, or an earlier decision calls for it at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from agspeed.distributed.meetings import Meetings
from agspeed.frontend import startup
from agspeed.tuning.ran_step import RanStep
from agspeed.tuning.stored_decision import chose_compiled


class EarnedStart:
    """Takes a controller's place until there is one. One per session, on its training thread."""

    def __init__(self, target: Callable[..., Any], cache_dir: Path) -> None:
        self.num_steps, self.seconds = 0, 0.0
        """What was trained so far."""
        self.meetings: Meetings | None = None
        """Of ranks that begin together, once it is due at the first of them."""
        self._target, self._cache_dir = target, cache_dir

    def is_due(self) -> bool:
        """Tuning may begin: it need not be earned, or has been."""
        if startup.has_machinery() or self.seconds >= startup.PAYS_AFTER_S:
            return True
        return self.num_steps == 0 and chose_compiled(self._target, self._cache_dir)

    def ran(self) -> None:
        """A step has ended, of which nothing but its time matters."""

    def after_step(self, seconds: float, shape: str, ran: RanStep | None) -> int:
        """A training step ended after `seconds`. Returns: how many more it takes, of which nobody need know."""
        self.steps_unseen(1, seconds)
        return int((startup.PAYS_AFTER_S - self.seconds) * self.num_steps / self.seconds)

    def steps_unseen(self, count: int, seconds: float) -> None:
        """`count` steps ran, `seconds` in all."""
        self.num_steps += count
        self.seconds += seconds

    @property
    def activity(self) -> str:
        """What is going on, as a sentence."""
        if self.num_steps == 0:
            return "waiting for the first training step"
        if self.meetings is not None:
            return f"{self.meetings.num_ranks} ranks tune together, once training has paid for it at the first of them"
        return "training has been too short so far to pay for tuning"
