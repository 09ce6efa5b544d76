# SPDX-License-Identifier: Apache-2.0
"""Greetings: how ranks describe themselves in the job's store before they meet, and how rank 0 answers.

Threads: the training thread, or the thread of a hook.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agspeed.distributed.messages import count, mapping, plain, text, texts
from agspeed.distributed.room import Room
from agspeed.log import logger

_MOST_LETTERS, _MOST_ROWS = 2000, 100
_HEX = "[0-9a-f]{16}"
_MOST_BACKWARDS = 1 << 48


@dataclass(frozen=True)
class Greeting:
    """A rank's description of itself. Ranks tune together only if all values in `must_agree` are equal."""

    who: str
    """E.g. "rank 1 on node3"."""
    must_agree: Mapping[str, str]
    may_differ: Mapping[str, str]
    home: str
    """The rank's host and cache. Ranks that share both compile once. Other ranks read only a digest of it."""
    nonce: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))
    """A random text. An announcement that repeats it was written after this greeting."""

    def to_json(self) -> dict[str, Any]:
        mappings = {name: _plain(values) for name, values in asdict(self).items() if isinstance(values, Mapping)}
        home = hashlib.sha256(self.home.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return {"who": plain(self.who, _MOST_LETTERS), **mappings, "home": home, "nonce": self.nonce}

    @staticmethod
    def parse(found: Any) -> Greeting:
        """Raises: ValueError, TypeError or KeyError for anything that `to_json` does not return."""
        must_agree, may_differ = (
            mapping(found[name], _MOST_ROWS, _MOST_LETTERS) for name in ("must_agree", "may_differ")
        )
        home, nonce = (text(found[name], 16, _HEX) for name in ("home", "nonce"))
        return Greeting(text(found["who"], _MOST_LETTERS), must_agree, may_differ, home, nonce)


def _plain(values: Mapping[str, str]) -> dict[str, str]:
    return {plain(name, _MOST_LETTERS): plain(value, _MOST_LETTERS) for name, value in values.items()}


@dataclass(frozen=True)
class Announcement:
    """Rank 0's answer to all ranks, once it has their greetings."""

    backward: int
    """The number of the first backward in which it holds."""
    names: list[str]
    homes: list[str]
    nonces: list[str]
    """`homes` and `nonces` come from the greetings, by rank; "" for ranks without a greeting."""
    token: str
    """A random text that belongs to these ranks and this model alone."""
    refused: str | None
    """Why the ranks do not tune together, as a sentence; None if they do."""

    @staticmethod
    def made(
        backward: int, greetings: Sequence[Greeting | None], names: list[str], refused: str | None
    ) -> Announcement:
        homes = [greeting.home if greeting else "" for greeting in greetings]
        nonces = [greeting.nonce if greeting else "" for greeting in greetings]
        refused = None if refused is None else plain(refused, 3 * _MOST_LETTERS)
        return Announcement(backward, names, homes, nonces, secrets.token_hex(8), refused)

    @staticmethod
    def parse(found: Any, num_ranks: int) -> Announcement:
        """Raises: ValueError, TypeError or KeyError for anything but an announcement to `num_ranks` ranks."""
        homes, nonces = (texts(found[name], num_ranks, 16, f"({_HEX})?") for name in ("homes", "nonces"))
        refused = None if found["refused"] is None else text(found["refused"], 3 * _MOST_LETTERS)
        names = texts(found["names"], num_ranks, _MOST_LETTERS)
        token = text(found["token"], 16, _HEX)
        return Announcement(count(found["backward"], _MOST_BACKWARDS), names, homes, nonces, token, refused)


class News:
    """Carries rank 0's announcement in one backward, so that all ranks act on it in the next one.

    Rank 0 writes it before its gradients leave, so every rank finds it at the beginning of the next backward. A slow
    rank may find it in the same backward already. It then acts on it in the next one, too.
    """

    def __init__(self, room: Room, num_ranks: int) -> None:
        self._room = room
        self._parse = functools.partial(Announcement.parse, num_ranks=num_ranks)
        self._found: Announcement | None = None

    def announce(self, news: Announcement) -> None:
        self._found = news
        self._room.put("news", asdict(news))

    def of_backward(self, backward: int) -> Announcement | None:
        """Returns the announcement if it holds in the backward that begins, else None.

        `is_looked_at` says which backwards poll the store.
        """
        if self._found is None and is_looked_at(backward - 1):
            self._found = self._room.find("news", self._parse)
        return self._found if self._found is not None and self._found.backward <= backward else None


def judged(greetings: Sequence[Greeting | None]) -> tuple[list[str], str | None]:
    """Returns the ranks' names, and why the ranks cannot tune together (None if they can)."""
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
    """A host group: the ranks that share a host and a cache, as one of them sees it."""

    token: str
    """Belongs to this job and model; the same at all ranks."""
    is_first: bool
    """Whether this rank is the lowest of the group."""

    @staticmethod
    def of(rank: int, token: str, homes: Sequence[str]) -> Household | None:
        """Returns None if no other rank shares the rank's host and cache. homes: the homes of all ranks, by rank."""
        if homes.count(homes[rank]) == 1:
            return None
        return Household(token, homes.index(homes[rank]) == rank)


def _differing(first: Greeting, other: Greeting | None) -> list[str]:
    return [name for name, value in first.may_differ.items() if other and other.may_differ.get(name) != value]


def is_looked_at(number: int) -> bool:
    """Whether the backward with this number polls the store: 2, 3, 4, 6, 8, 12, 16 ..."""
    power = 1 << (number.bit_length() - 1) if number >= 2 else 0
    return number >= 2 and number in (power, power + power // 2)
