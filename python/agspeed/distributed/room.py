# SPDX-License-Identifier: Apache-2.0
"""Room: the part of a job's store in which the ranks of one group leave messages for each other.

torch's store knows no key and may listen on all interfaces: `messages.py` says what is believed. The store's host may
become unreachable while training goes on: whoever asks it gives up after a while. Training thread, or another one of
this package's.
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
"""After which a store that does not answer is given up: its host's link may be cut while the others work."""
_numbers: Counter[tuple[str, str]] = Counter()
"""By the name of a group and the purpose: the rooms that were made there."""

T = TypeVar("T")


class Room:
    """See the module's text."""

    def __init__(self, store: Any, seal: Seal) -> None:
        self.store = store
        self.seal = seal

    def bind(self, token: str) -> None:
        """From now on messages count only if their writers have the token, too, which is of this meeting alone."""
        self.seal = self.seal.at(token)

    def put(self, key: str, value: Any) -> None:
        """Writes it; it is there when this returns. value: JSON."""
        message = self.seal.at(key).sealed(json.dumps(value).encode()).decode()
        _answered(lambda: (self.store.set(key, message), self.store.check([key])))

    def find(self, key: str, parse: Callable[[Any], T]) -> T | None:
        """What was written, or None where nothing has been. Raises: MessageError for what no rank of this job wrote."""
        found = self.find_all([key], parse)
        return None if found is None else found[0]

    def find_all(self, keys: Sequence[str], parse: Callable[[Any], T]) -> list[T] | None:
        """`find` of several keys, or None where one of them has not been written."""
        store = self.store
        messages = _answered(lambda: [store.get(key) for key in keys] if store.check(list(keys)) else None)
        return None if messages is None else [self._read(*pair, parse) for pair in zip(keys, messages, strict=True)]

    def find_if_ours(self, key: str, parse: Callable[[Any], T]) -> T | None:
        """`find`, for what training goes on without: a message of a stranger's is none, and is warned of."""
        try:
            return self.find(key, parse)
        except MessageError as error:
            warn_once(("room", key.partition("/")[0]), str(error))
            return None

    def _read(self, key: str, message: bytes, parse: Callable[[Any], T]) -> T:
        what = f"{key!r} in the job's store"
        return parsed(self.seal.at(key).opened(message, what), what, parse)


def room_of(group: Any, purpose: str) -> tuple[Room, str]:
    """The group's store, with a room for each model that comes there for that purpose, and that room's name in this
    process. Ranks make their models in the same order. Raises: UserError for a job key that cannot be used.
    """
    _numbers[group.group_name, purpose] += 1
    number = f"agspeed/{purpose}/{_numbers[group.group_name, purpose]}"
    name = f"{number} of group {group.group_name}"
    return Room(c10d.room_in(c10d.store_of(group), number), Seal(job_key(), name)), name


def _answered(ask: Callable[[], Any]) -> Any:
    """What `ask`, a request to a store, returns.

    Raises: TimeoutError where that takes too long; a thread is then left to it.
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
