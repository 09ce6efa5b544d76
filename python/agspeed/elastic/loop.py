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
import signal
import threading
from collections.abc import Callable
from typing import Any

from torch import distributed

from agspeed.elastic import control
from agspeed.elastic.control import BrokenEpochError, Control
from agspeed.elastic.state import ChangeInterrupt, State
from agspeed.elastic.store import CoordinatorStore
from agspeed.errors import UserError
from agspeed.membership.coordinator import Position
from agspeed.membership.messages import Place

__all__ = ["run"]

_BACKEND = "agspeed"
_MOST_VAIN = 3
"""How many epochs may fail in a row, without a step and without a lost process, until the error is the user's."""


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
        connection = control.of_this_process()
        if connection is None:
            return _run_once(function, state, *args, **kwargs)
        with _leaving_by_sigterm(connection):
            return _Loop(connection, state).run(lambda: function(state, *args, **kwargs))

    return elastic


def _run_once(function: Callable[..., Any], state: State, *args: Any, **kwargs: Any) -> Any:
    if distributed.is_initialized():
        state.take_over(0)
    return function(state, *args, **kwargs)


class _Loop:
    """One training of this process."""

    def __init__(self, connection: Control, state: State) -> None:
        self._control, self._state = connection, state
        self._position = Position(has_state=False, step=0)
        self._epoch = self._size = 0
        self._num_vain = 0

    def run(self, train: Callable[[], Any]) -> Any:
        result = None
        while True:
            place = self._control.next_place(self._epoch, self._position)
            if place is None:
                if not self._position.is_done:
                    raise SystemExit(0)  # it has left the job
                return result
            self._epoch = place.number
            try:
                with _group(self._control, place):
                    self._begin(place)
                    result = train()
                self._note_position(is_done=True)
            except ChangeInterrupt:
                self._note_position()
            except (distributed.DistError, BrokenEpochError) as error:
                self._note_loss(error)

    def _begin(self, place: Place) -> None:
        if place.source is not None:
            self._state.take_over(place.source)
        self._note_position()
        self._control.synced(place.number)
        if self._size not in (0, place.size):
            self._state.size_changed(self._size, place.size)
        self._size = place.size

    def _note_position(self, *, is_done: bool = False) -> None:
        if self._state.num_steps > self._position.step:
            self._num_vain = 0
        self._position = Position(has_state=True, step=self._state.num_steps, is_done=is_done)

    def _note_loss(self, error: Exception) -> None:
        """Reports the loss. Raises: the error, if it comes again and again though no process is lost."""
        self._num_vain = 0 if self._control.wants_change else self._num_vain + 1
        if self._num_vain >= _MOST_VAIN:
            raise error
        self._control.lost(self._epoch)
        if self._position.has_state:
            self._note_position()


@contextlib.contextmanager
def _leaving_by_sigterm(connection: Control) -> Any:
    """Lets SIGTERM mean: finish the step, leave the job, and exit with status 0. A handler of the user's stays."""

    def handle(number: int, frame: Any) -> None:
        if connection.is_over:
            raise SystemExit(128 + number)
        threading.Thread(target=connection.leave).start()  # not here, because the main thread may be sending

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, handle)
    connection.end_main_thread_by(signal.SIGTERM)
    try:
        yield
    finally:
        connection.end_main_thread_by(None)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def _group(connection: Control, place: Place) -> Any:
    """Makes the default group of an epoch, and ends it."""
    os.environ |= {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        "LOCAL_WORLD_SIZE": str(place.local_size),
    }
    store = CoordinatorStore(connection, place.number)
    try:
        try:
            distributed.init_process_group(_BACKEND, store=store, rank=place.rank, world_size=place.size)
        except RuntimeError as error:
            raise BrokenEpochError(str(error)) from error
        yield
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()
