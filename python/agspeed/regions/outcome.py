# SPDX-License-Identifier: Apache-2.0
"""Outcome: the result of one candidate on one region, and whether another process may get a different result."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agspeed.backends.base import Runner
from agspeed.regions.state import REFUSED, State
from agspeed.reporting.parts import Json

if TYPE_CHECKING:
    from agspeed._native import TunerArmSnapshot

_MAX_REASON = 500
"""A reason shows this many characters of an exception: a candidate may write megabytes into its message."""
_LACKS = (
    errno.EACCES,
    errno.EAGAIN,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOLCK,
    errno.ENOMEM,
    errno.ENOSPC,
    errno.EROFS,
    errno.ESTALE,
    errno.ETXTBSY,
)
_PASSING = re.compile(
    "|".join(
        (
            *(re.escape(os.strerror(code)) for code in _LACKS),
            # keep-sorted
            "MemoryError",
            "bad_alloc",
            "can't allocate memory",
            "can't start new thread",
            "killed signal",
            "memory budget",
            "memory runs out",
            "no inputs were captured",
            "no usable temporary directory",
            "out of memory",
            "there is no room",
        )
    ),
    re.IGNORECASE,
)


@dataclass
class Outcome:
    """The result of a candidate on a region."""

    candidate: str
    state: State
    reason: str = ""
    runner: Runner | None = None
    compile_seconds: float = 0.0
    gate_seconds: float = 0.0
    gate: Json = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        return self.state == State.READY and self.runner is not None

    def fail(self, reason: str) -> None:
        """Marks a ready candidate as failed at run time."""
        self._lose(State.FAILED, reason)

    def reject(self, reason: str) -> None:
        """Marks a compiled candidate as not accepted by the gate."""
        self._lose(State.REJECTED, reason)

    def _lose(self, state: State, reason: str) -> None:
        self.state, self.reason, self.runner = state, reason, None


def may_pass(reason: str) -> bool:
    """Returns whether a candidate was lost for a temporary lack of the machine: disk space, memory, descriptors, or the
    right to read a file. A decision that outlives the process must not depend on such a reason.
    """
    return _PASSING.search(reason) is not None


def first_passing(outcomes: Iterable[Outcome], arms: Iterable[TunerArmSnapshot]) -> str | None:
    """Returns the first candidate or plan that was lost for a temporary reason, with that reason; None without one.

    Args:
        outcomes: of the candidates on all regions.
        arms: the tuner's arms, as in its snapshot; their reasons include other ranks' failures.
    """
    out = [(outcome.candidate, outcome.reason) for outcome in outcomes if not outcome.usable]
    out += [(arm["name"], arm["reason"]) for arm in arms if arm["state"] in (*REFUSED, State.SKIPPED)]
    return next((f"{name} {reason}" for name, reason in out if may_pass(reason)), None)


def described(error: BaseException) -> str:
    """Returns the first line of an exception. Appends the first line of its message or its causes that `may_pass`."""
    lines = str(error).strip().splitlines() or [""]
    first = lines[0][:_MAX_REASON]
    seen, cause = {id(error)}, error.__cause__ or error.__context__
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        lines += f"{type(cause).__name__}: {cause}".splitlines()
        cause = cause.__cause__ or cause.__context__
    telling = next(filter(may_pass, lines[1:]), None)
    return first if telling is None or may_pass(first) else f"{first} ({telling.strip()[:_MAX_REASON]})"
