# SPDX-License-Identifier: Apache-2.0
"""How much of an elastic job's time was of use: counters, and the line that the launcher prints at the end.

Threading: the training's thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

__all__ = ["Goodput"]


@dataclass
class Goodput:
    """Counters of an elastic job. A process that joins takes them over together with the state.

    Attributes:
        num_epochs: how many groups of processes have trained.
        num_lost: how many steps were interrupted, so that they were made again. A process may also begin a step after
            another one has stopped for a change.
        change_seconds: how long each change of the processes took: from the loss, or from the news that processes join
            or leave, to the end of the first step in the new group.
    """

    num_epochs: int = 0
    num_lost: int = 0
    change_seconds: list[float] = field(default_factory=list)
    _changing_since: float | None = field(default=None, repr=False, compare=False)

    def note_change(self, since: float) -> None:
        """The processes have to change. since: when this process knew it (time.monotonic())."""
        if self._changing_since is None:
            self._changing_since = since

    def note_epoch(self, number: int, num_lost: int) -> None:
        """An epoch has begun. num_lost: how many steps the change has cost."""
        self.num_epochs = number
        self.num_lost += max(0, num_lost)

    def note_first_step(self) -> None:
        """This process has made its first step in an epoch."""
        if self._changing_since is not None:
            self.change_seconds.append(time.monotonic() - self._changing_since)
        self._changing_since = None

    def take_over(self, num_lost: int, change_seconds: list[float]) -> None:
        """Replaces this process's counters by another one's."""
        self.num_lost, self.change_seconds = num_lost, change_seconds

    def metrics(self) -> dict[str, float]:
        """Returns the counters for the status of a TrainJob."""
        return {
            "membership_epochs": self.num_epochs,
            "interrupted_steps": self.num_lost,
            "change_seconds": sum(self.change_seconds),
        }

    def sentence(self, num_steps: int) -> str:
        """Sums the job up. num_steps: how many steps the training has made."""
        times = ", ".join(f"{seconds:.1f} s" for seconds in self.change_seconds)
        lost = "no step interrupted" if not self.num_lost else f"{_count(self.num_lost, 'interrupted step')} made again"
        text = f"{_count(num_steps, 'step')} in {_count(self.num_epochs, 'epoch')}; {lost}"
        return f"{text}; changes took {times}" if times else text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
