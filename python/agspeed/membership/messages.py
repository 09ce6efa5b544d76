# SPDX-License-Identifier: Apache-2.0
"""The messages between a member of an elastic job and the coordinator: one JSON object per line. Pure.

    member to coordinator                          coordinator to member
    {"ready": [epoch, has state, step, is done]}   {"epoch": {...}}     a `Place` in the epoch that has begun
    {"lost": epoch}    a peer of it                {"change": broken}   answer, and be ready: at the next step, or, with
                                                                        1, at once, because a peer is lost
    {"alive": 0}       the answer to a change      {"release": 0}       you have left the job
    {"synced": epoch}  it has the epoch's state    {"over": "reason"}   the job is over; empty if it is done
    {"leave": 0}       it has to leave             {"answer": [request, is ok, value]}
    {"report": [...]}  a `Report`             {"report": 0}      report to a new coordinator
    {"summary": "sentence"}    for the user, at the end of the job
    {"ask": [request, epoch, operation, arguments]}    of the store (`epoch_store.py`)

The pipe between both belongs to the job alone: a member inherits its end, and the launcher's agent has the other one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Self

from agspeed import bounded_json
from agspeed.membership.coordinator import Position, Report

__all__ = ["CONTROL_VARIABLE", "MOST_BYTES", "Lines", "MessageError", "Place", "line_of", "report_of", "words_of"]

CONTROL_VARIABLE = "AGSPEED_CONTROL_FD"
"""The variable with the descriptor of a member's end."""
MOST_BYTES = 1 << 20
"""The longest message."""
_SHOWN_BYTES = 60


class MessageError(ValueError):
    """The other side sent something else. The message says what, for the end of a sentence."""


@dataclass(frozen=True)
class Place:
    """A member's place in an epoch.

    Attributes:
        number: the epoch.
        source: the rank whose state all others take over.
        has_lost: whether a process of the epoch before was lost.
        cross_rank, cross_size: among the ranks of other hosts with the same local rank, as Horovod counts them.
    """

    number: int
    rank: int
    size: int
    source: int
    has_lost: bool
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    @classmethod
    def of(cls, value: Any) -> Self:
        """Raises: MessageError for anything else than a place."""
        names = cls.__dataclass_fields__
        if not isinstance(value, dict) or value.keys() != names.keys():
            raise MessageError(f"an epoch that is not complete: {str(value)[:_SHOWN_BYTES]}")
        numbers = [each for name, each in value.items() if name != "has_lost"]
        if type(value["has_lost"]) is not bool or any(type(each) is not int or each < 0 for each in numbers):
            raise MessageError(f"an epoch with a wrong number: {str(value)[:_SHOWN_BYTES]}")
        return cls(**value)

    def to_json(self) -> dict[str, int]:
        return asdict(self)


class Lines:
    """Turns the bytes of one direction into messages."""

    def __init__(self) -> None:
        self._unread = b""

    def add(self, data: bytes) -> Iterator[tuple[str, Any]]:
        """Yields the kind and the value of each message that is complete now. Raises: MessageError."""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            yield self._message(line)
        if len(self._unread) > MOST_BYTES:
            raise MessageError(f"a message of more than {MOST_BYTES} bytes")

    def _message(self, line: bytes) -> tuple[str, Any]:
        try:
            message = bounded_json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict) or len(message) != 1:
            raise MessageError(repr(line[:_SHOWN_BYTES])[1:])
        ((kind, value),) = message.items()
        return kind, value


def words_of(report: Report) -> list[Any]:
    """Returns a report as a message has it."""
    each = report.waiting
    waiting = None if each is None else [each.has_state, each.step, each.is_done]
    flags = [report.is_synced, report.is_leaving, report.wants_change, report.is_broken]
    return [report.epoch, report.rank, report.size, waiting, *flags]


def report_of(words: Any) -> Report:
    """Returns the report that a message has. Raises: MessageError for anything else."""
    match words:
        case [
            int(epoch),
            int(rank),
            int(size),
            None | [bool(_), int(_), bool(_)] as waiting,
            bool(is_synced),
            bool(is_leaving),
            bool(wants_change),
            bool(is_broken),
        ] if epoch >= 0 and 0 <= rank <= size:
            position = None if waiting is None else Position(*waiting)
            return Report(epoch, rank, size, position, is_synced, is_leaving, wants_change, is_broken)
    raise MessageError(f"a report that is not complete: {str(words)[:_SHOWN_BYTES]}")


def line_of(kind: str, value: Any) -> bytes:
    return json.dumps({kind: value}).encode() + b"\n"
