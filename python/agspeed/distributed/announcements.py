# SPDX-License-Identifier: Apache-2.0
"""Announcements: how ranks describe themselves in the job's store before their first sync, and how rank 0 replies.

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
class Announcement:
    """A rank's description of itself. Ranks tune together only if all values in `must_agree` are equal."""

    who: str
    """E.g. "rank 1 on node3"."""
    must_agree: Mapping[str, str]
    may_differ: Mapping[str, str]
    home: str
    """The rank's host and cache. Ranks that share both compile once. Other ranks read only a digest of it."""
    nonce: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))
    """A random text. A reply that repeats it was written after this announcement."""

    def to_json(self) -> dict[str, Any]:
        mappings = {name: _plain(values) for name, values in asdict(self).items() if isinstance(values, Mapping)}
        home = hashlib.sha256(self.home.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return {"who": plain(self.who, _MOST_LETTERS), **mappings, "home": home, "nonce": self.nonce}

    @staticmethod
    def parse(found: Any) -> Announcement:
        """Raises: ValueError, TypeError or KeyError for anything that `to_json` does not return."""
        must_agree, may_differ = (
            mapping(found[name], _MOST_ROWS, _MOST_LETTERS) for name in ("must_agree", "may_differ")
        )
        home, nonce = (text(found[name], 16, _HEX) for name in ("home", "nonce"))
        return Announcement(text(found["who"], _MOST_LETTERS), must_agree, may_differ, home, nonce)


def _plain(values: Mapping[str, str]) -> dict[str, str]:
    return {plain(name, _MOST_LETTERS): plain(value, _MOST_LETTERS) for name, value in values.items()}


@dataclass(frozen=True)
class Reply:
    """Rank 0's reply to all ranks, once it has their announcements."""

    backward: int
    """The number of the first backward in which it holds."""
    names: list[str]
    homes: list[str]
    nonces: list[str]
    """`homes` and `nonces` come from the announcements, by rank; "" for ranks without an announcement."""
    token: str
    """A random text that belongs to these ranks and this model alone."""
    refused: str | None
    """Why the ranks do not tune together, as a sentence; None if they do."""

    @staticmethod
    def made(
        backward: int, announcements: Sequence[Announcement | None], names: list[str], refused: str | None
    ) -> Reply:
        homes = [each.home if each else "" for each in announcements]
        nonces = [each.nonce if each else "" for each in announcements]
        refused = None if refused is None else plain(refused, 3 * _MOST_LETTERS)
        return Reply(backward, names, homes, nonces, secrets.token_hex(8), refused)

    @staticmethod
    def parse(found: Any, num_ranks: int) -> Reply:
        """Raises: ValueError, TypeError or KeyError for anything but a reply to `num_ranks` ranks."""
        homes, nonces = (texts(found[name], num_ranks, 16, f"({_HEX})?") for name in ("homes", "nonces"))
        refused = None if found["refused"] is None else text(found["refused"], 3 * _MOST_LETTERS)
        names = texts(found["names"], num_ranks, _MOST_LETTERS)
        token = text(found["token"], 16, _HEX)
        return Reply(count(found["backward"], _MOST_BACKWARDS), names, homes, nonces, token, refused)


class ReplySlot:
    """The store's entry for rank 0's reply. It carries the reply in one backward, and all ranks act on it in the next.

    Rank 0 writes it before its gradients leave, so every rank finds it at the beginning of the next backward. A slow
    rank may find it in the same backward already. It then acts on it in the next one, too.
    """

    def __init__(self, room: Room, num_ranks: int) -> None:
        self._room = room
        self._parse = functools.partial(Reply.parse, num_ranks=num_ranks)
        self._found: Reply | None = None

    def put(self, reply: Reply) -> None:
        self._found = reply
        self._room.put("reply", asdict(reply))

    def of_backward(self, backward: int) -> Reply | None:
        """Returns the reply if it holds in the backward that begins, else None.

        `is_looked_at` says which backwards poll the store.
        """
        if self._found is None and is_looked_at(backward - 1):
            self._found = self._room.find("reply", self._parse)
        return self._found if self._found is not None and self._found.backward <= backward else None


def judged(announcements: Sequence[Announcement | None]) -> tuple[list[str], str | None]:
    """Returns the ranks' names, and why the ranks cannot tune together (None if they can)."""
    silent = [rank for rank, each in enumerate(announcements) if each is None]
    names = [each.who if each else f"rank {rank}" for rank, each in enumerate(announcements)]
    first = announcements[0]
    if silent or first is None:
        who = ", ".join(names[rank] for rank in silent)
        return names, f"{who}: no agspeed.optimize there, or AGSPEED_DISABLE is set"
    for announcement in announcements:
        assert announcement is not None
        for field, value in first.must_agree.items():
            if announcement.must_agree.get(field) != value:
                there = announcement.must_agree.get(field)
                return names, f"{announcement.who} has another {field} than {first.who}: {there} and {value}"
    differing = sorted({field for other in announcements for field in _differing(first, other)})
    if differing:
        logger.info("ranks tune together though they differ in %s", ", ".join(differing))
    return names, None


@dataclass(frozen=True)
class HostGroup:
    """A host group: the ranks that share a host and a cache, as one of them sees it."""

    token: str
    """Belongs to this job and model; the same at all ranks."""
    is_first: bool
    """Whether this rank is the lowest of the group."""

    @staticmethod
    def of(rank: int, token: str, homes: Sequence[str]) -> HostGroup | None:
        """Returns None if no other rank shares the rank's host and cache. homes: the homes of all ranks, by rank."""
        if homes.count(homes[rank]) == 1:
            return None
        return HostGroup(token, homes.index(homes[rank]) == rank)


def _differing(first: Announcement, other: Announcement | None) -> list[str]:
    return [name for name, value in first.may_differ.items() if other and other.may_differ.get(name) != value]


def is_looked_at(number: int) -> bool:
    """Whether the backward with this number polls the store: 2, 3, 4, 6, 8, 12, 16 ..."""
    power = 1 << (number.bit_length() - 1) if number >= 2 else 0
    return number >= 2 and number in (power, power + power // 2)
