# SPDX-License-Identifier: Apache-2.0
"""Greetings: what ranks say of themselves in the job's store, and what rank 0 makes of them, before they meet.

The store's host may become unreachable while training goes on: whoever asks it gives up after a while. Training thread,
or the one of a hook.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agspeed.log import logger
from agspeed.torch_compat import c10d

_STORE_SECONDS = 10.0
"""After which a store that does not answer is given up: its host's link may be cut while the others work."""
_numbers: Counter[str] = Counter()
"""By the name of a group: the meetings that were made there."""


@dataclass(frozen=True)
class Greeting:
    """What a rank says of itself. Those that tune together have to agree in `must_agree`, name by name."""

    who: str
    """E.g. "rank 1 on node3"."""
    must_agree: Mapping[str, str]
    may_differ: Mapping[str, str]
    home: str
    """Host and cache: those that share both compile once."""


class News:
    """What rank 0 announces in one backward for the next: all ranks know of it at the same one.

    Written before rank 0's gradients leave: whoever begins the next backward finds it. A rank that is late may find it
    in the same backward already, and waits.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._found: dict[str, Any] | None = None

    def announce(self, backward: int, content: dict[str, Any]) -> None:
        self._found = {**content, "backward": backward + 1}
        put(self._store, "news", json.dumps(self._found))

    def of_backward(self, backward: int) -> dict[str, Any] | None:
        """What was announced for the backward that begins, or for an earlier one."""
        if self._found is None and is_looked_at(backward - 1) and (text := found_in(self._store, "news")):
            self._found = json.loads(text)
        return self._found if self._found is not None and self._found["backward"] <= backward else None


def judged(greetings: list[Greeting | None]) -> tuple[list[str], str | None]:
    """The ranks' names, and why they cannot tune together, if so."""
    silent = [rank for rank, greeting in enumerate(greetings) if greeting is None]
    names = [greeting.who if greeting else f"rank {rank}" for rank, greeting in enumerate(greetings)]
    first = greetings[0]
    if silent or first is None:
        who = ", ".join(names[rank] for rank in silent)
        return names, f"{who}: no agspeed.optimize there, or AGSPEED_DISABLE is set"
    for greeting in greetings:
        assert greeting is not None
        for field, value in first.must_agree.items():
            if greeting.must_agree.get(field) != value:
                there = greeting.must_agree.get(field)
                return names, f"{greeting.who} has another {field} than {first.who}: {there} and {value}"
    differing = sorted({field for other in greetings for field in _differing(first, other)})
    if differing:
        logger.info("ranks tune together though they differ in %s", ", ".join(differing))
    return names, None


@dataclass(frozen=True)
class Household:
    """Ranks that share a host and a cache, as one of them sees it."""

    token: str
    """Of this job and model, the same at all ranks."""
    is_first: bool
    """This rank is the lowest of them."""

    @staticmethod
    def of(rank: int, token: str, homes: Sequence[str]) -> Household | None:
        """homes: of all ranks. None where the rank lives alone."""
        if homes.count(homes[rank]) == 1:
            return None
        return Household(token, homes.index(homes[rank]) == rank)


def _differing(first: Greeting, other: Greeting | None) -> list[str]:
    return [field for field, value in first.may_differ.items() if other and other.may_differ.get(field) != value]


def is_looked_at(number: int) -> bool:
    """Whether `number` is 2, 3, 4, 6, 8, 12, 16 ..."""
    power = 1 << (number.bit_length() - 1) if number >= 2 else 0
    return number >= 2 and number in (power, power + power // 2)


def store_of(group: Any) -> tuple[Any, str]:
    """The group's store, with a room for each model that meets there, and that room's name in this process. Ranks make
    their models in the same order.
    """
    store = c10d.store_of(group)
    _numbers[group.group_name] += 1
    room = f"agspeed/meetings/{_numbers[group.group_name]}"
    return c10d.room_in(store, room), f"{room} of group {group.group_name}"


def put(store: Any, key: str, text: str) -> None:
    """Writes it; it is there when this returns."""
    answered(lambda: (store.set(key, text), store.check([key])))


def found_in(store: Any, key: str) -> bytes | None:
    """What was written, or None where nothing has been."""
    found: bytes | None = answered(lambda: store.get(key) if store.check([key]) else None)
    return found


def answered(ask: Callable[[], Any]) -> Any:
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
