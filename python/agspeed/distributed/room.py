# SPDX-License-Identifier: Apache-2.0
"""Room: the part of a job's store in which the ranks of one group leave messages for each other.

torch's store has no key and may listen on all interfaces, so `messages.py` checks what is read. The store's host may
become unreachable while training goes on, so every request gives up after a while. Threads: the training thread, or
another thread of this package.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from agspeed.distributed.messages import MessageError, Seal, job_key, parsed
from agspeed.log import warn_once
from agspeed.torch_compat import c10d

_STORE_SECONDS = 10.0
"""A request gives up after this time. The link to the store's host may be cut while all other links work."""
_numbers: Counter[tuple[str, str]] = Counter()
"""How many rooms were made, by the name of a group and the purpose."""

T = TypeVar("T")


class Room:
    """A part of a store, with the seal of its messages (see the module's docstring)."""

    def __init__(self, store: Any, seal: Seal) -> None:
        self.store = store
        self.seal = seal

    def bind(self, token: str) -> None:
        """Makes the room accept only messages whose writers know `token` (`Reply.token`) from now on."""
        self.seal = self.seal.at(token)

    def put(self, key: str, value: Any) -> None:
        """Writes a JSON value. Other ranks can find it once this returns."""
        message = self.seal.at(key).sealed(json.dumps(value).encode()).decode()
        _answered(lambda: (self.store.set(key, message), self.store.check([key])))

    def find(self, key: str, parse: Callable[[Any], T]) -> T | None:
        """Returns the value that was written, or None if there is none yet.

        Raises: MessageError if no rank of this job wrote the message.
        """
        found = self.find_all([key], parse)
        return None if found is None else found[0]

    def find_all(self, keys: Sequence[str], parse: Callable[[Any], T]) -> list[T] | None:
        """Like `find`, for several keys; None if one of them has not been written."""
        store = self.store
        messages = _answered(lambda: [store.get(key) for key in keys] if store.check(list(keys)) else None)
        return None if messages is None else [self._read(*pair, parse) for pair in zip(keys, messages, strict=True)]

    def find_if_ours(self, key: str, parse: Callable[[Any], T]) -> T | None:
        """Like `find`, for messages that training can do without: warns of a stranger's message and returns None."""
        try:
            return self.find(key, parse)
        except MessageError as error:
            warn_once(("room", key.partition("/")[0]), str(error))
            return None

    def _read(self, key: str, message: bytes, parse: Callable[[Any], T]) -> T:
        what = f"{key!r} in the job's store"
        return parsed(self.seal.at(key).opened(message, what), what, parse)


def room_of(group: Any, purpose: str) -> tuple[Room, str]:
    """Makes a room in the group's store, and returns it with its name in this process.

    Each call for a purpose makes a new room, one for each model. Ranks must make their models in the same order.
    Raises: UserError for a job key that cannot be used.
    """
    _numbers[group.group_name, purpose] += 1
    number = f"agspeed/{purpose}/{_numbers[group.group_name, purpose]}"
    name = f"{number} of group {group.group_name}"
    return Room(c10d.room_in(c10d.store_of(group), number), Seal(job_key(), name)), name


def _answered(ask: Callable[[], Any]) -> Any:
    """Runs `ask`, a request to a store, and returns its result.

    Raises: TimeoutError if it takes too long; its thread then stays behind.
    """
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def answer() -> None:
        try:
            answers.put((ask(), None))
        except Exception as error:
            answers.put((None, error))

    threading.Thread(target=answer, name="agspeed-store", daemon=True).start()
    try:
        value, error = answers.get(timeout=_STORE_SECONDS)
    except queue.Empty:
        raise TimeoutError(f"the job's store has not answered for {_STORE_SECONDS:g} s") from None
    if error is not None:
        raise error
    return value
