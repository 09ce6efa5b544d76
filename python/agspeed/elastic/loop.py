# SPDX-License-Identifier: Apache-2.0
"""`elastic.run`: calls the training function once per epoch of the job, until the training is done.

An epoch is a group of processes that train together (`membership/coordinator.py`). The function begins again in each
one, with the state that the processes agree on.

Threading: the training's thread.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

from torch import distributed

from agspeed.distributed import groups
from agspeed.elastic import member as members
from agspeed.elastic.control import BrokenEpochError
from agspeed.elastic.leaving import leaving_by_sigterm
from agspeed.elastic.member import Member
from agspeed.elastic.state import ChangeInterrupt, State
from agspeed.elastic.store import CoordinatorStore
from agspeed.errors import UserError
from agspeed.membership.messages import Place

__all__ = ["run"]

_BACKEND = "agspeed"
_NAMED_ERRORS = ("DistBackendError", "DistError", "DistNetworkError", "DistStoreError")


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a training function elastic. Its first argument is a `State`.

    The function runs with a default group of torch.distributed, which is another one in each epoch. So objects that
    hold the group, such as DistributedDataParallel, are made within the function. Errors of communication end the
    epoch; all other errors pass through.

    In a process that `agspeed run` has not started as a member of an elastic job, the function is called once: in the
    default group if there is one, or else alone.
    """

    @functools.wraps(function)
    def elastic(state: State, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(state, State):
            raise UserError(f"the first argument of {function.__name__} is a {type(state).__name__}: pass a State.")
        member = members.of_this_process()
        if member is None:
            return _run_once(function, state, *args, **kwargs)
        with leaving_by_sigterm(member.connection):
            return _Loop(member, state).run(lambda: function(state, *args, **kwargs))

    return elastic


def _run_once(function: Callable[..., Any], state: State, *args: Any, **kwargs: Any) -> Any:
    if distributed.is_initialized():
        state.take_over(0)
    return function(state, *args, **kwargs)


class _Loop:
    """One training of this process."""

    def __init__(self, member: Member, state: State) -> None:
        self._member, self._state = member, state
        self._size = 0
        self._begun = 0  # the last epoch whose state this process has had
        self._is_interrupted = False  # whether an error has ended that epoch within a step

    def run(self, train: Callable[[], Any]) -> Any:
        while True:
            place = self._member.next_place()
            try:
                with _group(place, self._member.store()):
                    self._begin(place)
                    result = train()
                self._member.note_step(self._state.num_steps)
                if place.rank == 0:
                    self._member.connection.sum_up(self._state.goodput.sentence(self._state.num_steps))
                if self._member.finish():
                    return result
            except ChangeInterrupt:
                self._member.note_step(self._state.num_steps)
                self._state.goodput.note_change(self._member.connection.noticed_at)
            except (RuntimeError, BrokenEpochError) as error:
                if not _is_of_communication(error):
                    raise
                if self._begun:
                    self._member.note_step(self._state.num_steps)
                    self._is_interrupted |= self._begun == place.number
                    self._state.goodput.note_change(self._member.connection.noticed_at)
                self._member.note_loss(error)

    def _begin(self, place: Place) -> None:
        num_begun = self._state.num_steps + self._is_interrupted
        self._state.take_over(place.source)
        self._state.goodput.note_epoch(place.number, num_begun - self._state.num_steps)
        self._begun, self._is_interrupted = place.number, False
        self._member.begin(self._state.num_steps)
        if self._size not in (0, place.size):
            self._state.size_changed(self._size, place.size)
        self._size = place.size


def _is_of_communication(error: Exception) -> bool:
    """Whether a collective has failed. If it was one of a communication hook, torch raises a RuntimeError, which names
    the type of the error in its text only."""
    kinds = (distributed.DistError, BrokenEpochError)
    return isinstance(error, kinds) or any(f"{kind}: " in str(error) for kind in _NAMED_ERRORS)


@contextlib.contextmanager
def _group(place: Place, store: CoordinatorStore) -> Iterator[None]:
    """Makes the default group of an epoch, and ends it."""
    os.environ |= {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        "LOCAL_WORLD_SIZE": str(place.local_size),
    }
    try:
        try:
            distributed.init_process_group(_BACKEND, store=store, rank=place.rank, world_size=place.size)
        except RuntimeError as error:
            raise BrokenEpochError(str(error)) from error
        groups.membership_changes = True
        yield
    finally:
        groups.membership_changes = False
        if distributed.is_initialized():
            distributed.destroy_process_group()
