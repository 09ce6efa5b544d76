# SPDX-License-Identifier: Apache-2.0
"""This process as a member of an elastic job: the epochs that it goes through, and how far it has come.

Threading: the training's thread.
"""

from __future__ import annotations

from agspeed.elastic import control
from agspeed.elastic.control import Control
from agspeed.elastic.store import CoordinatorStore
from agspeed.errors import UserError
from agspeed.membership.coordinator import Position
from agspeed.membership.messages import Place

__all__ = ["Member", "of_this_process"]

_MOST_VAIN = 3
"""How many epochs may fail in a row, without a step and without a lost process, until the error is the user's."""


class Member:
    """The state of this process in its job.

    Attributes:
        place: the place in the current epoch; None before the first.
    """

    def __init__(self, connection: Control) -> None:
        self.connection = connection
        self.place: Place | None = None
        self._position = Position(has_state=False, step=0)
        self._store: CoordinatorStore | None = None
        self._is_placed = self._is_finished = False
        self._failure: Exception | None = None
        self._num_vain = 0

    @property
    def wants_change(self) -> bool:
        """Whether this process has to be ready for another epoch."""
        return self.connection.wants_change

    @property
    def has_predecessors(self) -> bool:
        """Whether other members may have trained before the current epoch."""
        return self.place is not None and self.place.number > 1

    def next_place(self) -> Place:
        """Returns the place in the next epoch. Waits for it and raises as `wait_for_place` does."""
        if not self._is_placed:
            self.wait_for_place()
        self._is_placed = False
        assert self.place is not None
        return self.place

    def wait_for_place(self) -> None:
        """Waits until the next epoch has begun.

        Raises:
            SystemExit: with status 0, if this process has left the job.
            AgspeedError: the job cannot go on.
            UserError: the job's training is done already.
            Exception: the error of `note_loss`, if epochs have failed again and again and no process was lost.
        """
        if self._is_finished:
            raise UserError("the training of this elastic job is done: a job has one call of elastic.run.")
        self._wait()
        if self.place is None:
            raise SystemExit(0)
        if self._failure is not None:
            self._num_vain = 0 if self.place.has_lost else self._num_vain + 1
            if self._num_vain >= _MOST_VAIN:
                raise self._failure
            self._failure = None
        self._is_placed = True

    def begin(self, step: int) -> None:
        """The process has the epoch's state. step: how many steps or commits it has seen."""
        self.note_step(step)
        assert self.place is not None
        self.connection.synced(self.place.number)

    def store(self) -> CoordinatorStore:
        """Returns the store of the current epoch. The member keeps it, because C++ calls it and holds no reference."""
        assert self.place is not None
        self._store = CoordinatorStore(self.connection, self.place.number)
        return self._store

    def note_step(self, step: int) -> None:
        """Notes how far the state has come. step: as for `begin`."""
        if step > self._position.step:
            self._num_vain = 0
        self._position = Position(has_state=True, step=step)

    def note_loss(self, error: Exception) -> None:
        """Reports that the epoch has failed."""
        self._failure = error
        assert self.place is not None
        self.connection.lost(self.place.number)

    def finish(self) -> bool:
        """Waits until the training is done at all processes. Returns: False if there is another epoch before that."""
        self._position = Position(has_state=True, step=self._position.step, is_done=True)
        self._wait()
        self._is_placed = self.place is not None
        self._is_finished = not self._is_placed
        return self._is_finished

    def _wait(self) -> None:
        self.place = self.connection.next_place(0 if self.place is None else self.place.number, self._position)


_member: Member | None = None


def of_this_process() -> Member | None:
    """Returns this process's membership; None if it belongs to no elastic job."""
    global _member
    connection = control.of_this_process()
    if _member is None and connection is not None:
        _member = Member(connection)
    return _member
