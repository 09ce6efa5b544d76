# SPDX-License-Identifier: Apache-2.0
"""The decisions of the coordinator (`coordinator.py`)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Action", "Change", "End", "Epoch", "Expulsion", "Release"]


@dataclass(frozen=True)
class Epoch:
    """Tell its members that the epoch has begun."""

    number: int
    members: tuple[int, ...]
    """By rank: members of the epoch before, in their order, and then new ones."""
    source: int
    """The rank whose state all others take over. Equal numbers of steps do not show that states are equal: a member may
    have been interrupted between its optimizer's step and the count of it."""
    has_lost: bool
    """Whether a process of the epoch before was lost. If not, errors in that epoch were the program's own."""


@dataclass(frozen=True)
class Change:
    """Ask these members whether they live, and to call for a new epoch: at their next step, or at once."""

    members: tuple[int, ...]
    is_broken: bool
    """Whether members have failed to reach each other, so that the others will fail, too."""


@dataclass(frozen=True)
class Release:
    """Tell the member that it has left the job, so that its process can end."""

    member: int


@dataclass(frozen=True)
class Expulsion:
    """Kill the member."""

    member: int
    reason: str
    """The end of a sentence."""


@dataclass(frozen=True)
class End:
    """The job is over. Tell all members that wait."""

    reason: str
    """A sentence; empty if the training is done."""


Action = Epoch | Change | Release | Expulsion | End
