# SPDX-License-Identifier: Apache-2.0
"""The report of an agent to a launcher that takes its job over. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from agspeed.launch.frames import FrameError
from agspeed.launch.hosts import MOST_SLOTS
from agspeed.membership.coordinator import Progress

__all__ = ["HostReport", "Living"]

_LONGEST_TEXT = 1 << 14


class Living(NamedTuple):
    """A member that runs. has_spoken: whether it has sent any message."""

    member: int
    slot: int
    has_spoken: bool


@dataclass(frozen=True)
class HostReport:
    """The members of a host, and what its agent has kept.

    Attributes:
        gone: members that have ended without a launcher, and their statuses.
        key: the job's key; None if members inherit a key of the user's own.
        num_dropped: how many bytes of output were dropped.
    """

    progress: Progress
    living: Sequence[Living]
    gone: Sequence[tuple[int, int]]
    key: str | None
    num_dropped: int

    @classmethod
    def of(cls, value: Any) -> Self:
        """Raises: FrameError for other values than an agent's."""
        match value:
            case {
                "progress": [int(epoch), int(num_known), bool(has_trained), None | str() as end],
                "members": list(members),
                "gone": list(gone),
                "key": None | str() as key,
                "num_dropped": int(num_dropped),
            } if min(epoch, num_known, num_dropped) >= 0 and max(len(end or ""), len(key or "")) <= _LONGEST_TEXT:
                progress = Progress(epoch, num_known, has_trained, end)
                living = [_living(each, num_known) for each in members]
                return cls(progress, living, [_ended(each, num_known) for each in gone], key, num_dropped)
        raise FrameError("a report that is not complete")


def _living(value: Any, num_known: int) -> Living:
    match value:
        case [int(member), int(slot), bool(has_spoken)] if 0 <= member < num_known and 0 <= slot < MOST_SLOTS:
            return Living(member, slot, has_spoken)
    raise FrameError("a member that is none")


def _ended(value: Any, num_known: int) -> tuple[int, int]:
    match value:
        case [int(member), int(status)] if 0 <= member < num_known and -128 < status < 256:
            return member, status
    raise FrameError("the end of a member that is none")
