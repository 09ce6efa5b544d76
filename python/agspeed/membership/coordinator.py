# SPDX-License-Identifier: Apache-2.0
"""Decides which members train together in an elastic job: a state machine without clocks, processes or connections.

A member is a process of the job. Its id is never used again. An epoch is a group of members that train together, with
ranks from 0. The members of an epoch ask for the next one when a peer is lost, when the coordinator wants a change
(`Change`), or when they are done. They wait until it is announced (`Epoch`). Each epoch has one announcement, which all
of its members get, so no two groups can train at the same time.

    member 0   ready ──► Epoch 1 (0, 1)   lost peer, ready ──► Epoch 2 (0, 2)
    member 1   ready ──► Epoch 1 (0, 1)   killed
    member 2                              started, ready ────► Epoch 2 (0, 2), with the state of member 0

Each function takes the time, in seconds from any start, and returns what has to be done now. Threading: none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["Action", "Change", "Coordinator", "End", "Epoch", "Expulsion", "Limits", "Position", "Release"]


@dataclass(frozen=True)
class Limits:
    """least, most: how many members may train together; first: how many the first epoch waits for."""

    least: int
    most: int
    first: int
    silence_s: float = 2.0
    """A member that does not answer a `Change` for this long is expelled."""
    wait_s: float = 600.0
    """How long members wait until there are enough of them."""


@dataclass(frozen=True)
class Position:
    """How far a member has come."""

    has_state: bool
    """False for a process that was just started, or that has not taken over the others' state yet."""
    step: int
    """How many steps its state has seen."""
    is_done: bool = False
    """Whether its training is over, if all others' is."""


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


@dataclass
class _Member:
    position: Position | None = None
    """Where it waits for the next epoch; None while it does not wait."""
    is_leaving: bool = False
    has_time: bool = False
    """Whether it may stay until another member has its state."""
    is_synced: bool = False
    """Whether it has the state of the current epoch."""
    has_answered: bool = True
    """Whether it has said anything since the last `Change`."""

    @property
    def can_stay(self) -> bool:
        return self.position is not None and not self.is_leaving

    @property
    def has_state(self) -> bool:
        return self.position is not None and self.position.has_state


@dataclass
class Coordinator:
    """The state of one job.

    Attributes:
        epoch: the number of the current epoch; 0 before the first.
        ranks: the members of the current epoch that have not ended, in the order of their ranks.
        is_over: whether the job is over. Later events are ignored.
    """

    limits: Limits
    epoch: int = 0
    ranks: tuple[int, ...] = ()
    is_over: bool = False
    _members: dict[int, _Member] = field(default_factory=dict)
    _num_known: int = 0
    _asked_at: float | None = None
    """When members of the current epoch were last asked for a change."""
    _short_since: float | None = None
    """Since when there are too few members."""
    _is_broken: bool = False
    """Whether members have failed to reach each other."""
    _has_lost: bool = False
    """Whether the epoch has lost a member."""
    _has_trained: bool = False
    """Whether any member has had the training's state."""

    # --- what members say ---

    def join(self, now: float) -> tuple[int, list[Action]]:
        """A process was started. Returns: its id, and what to do."""
        member = self._num_known
        self._num_known += 1
        self._members[member] = _Member()
        return member, self._next(now)

    def ready(self, member: int, epoch: int, position: Position, now: float) -> list[Action]:
        """The member waits for the epoch that follows `epoch`, which is 0 for a new member."""
        each = self._members.get(member)
        if each is None or epoch != (self.epoch if member in self.ranks else 0):
            return []
        each.position, each.has_answered = position, True
        self._has_trained |= position.has_state
        return self._next(now)

    def lost(self, member: int, epoch: int, now: float) -> list[Action]:
        """The member has lost a peer of this epoch."""
        if member not in self.ranks or epoch != self.epoch:
            return []
        self._is_broken = True
        return [*self._ask(now), *self._next(now)]

    def answer(self, member: int, now: float) -> list[Action]:
        """The member has got a `Change`."""
        if member in self._members:
            self._members[member].has_answered = True
        return self._next(now)

    def synced(self, member: int, epoch: int, now: float) -> list[Action]:
        """The member has the epoch's state."""
        if member not in self.ranks or epoch != self.epoch:
            return []
        self._has_trained = self._members[member].is_synced = True
        known = [self._members[each] for each in self.ranks]
        has_handed_over = all(each.is_synced for each in known) and any(each.is_leaving for each in known)
        return self._ask(now) if has_handed_over else []

    def leave(self, member: int, now: float) -> list[Action]:
        """The member has to leave. It goes when the others go on without it. The job ends if all members have to."""
        return self._let_go(member, False, now)

    def retire(self, member: int, now: float) -> list[Action]:
        """The member is to leave, because its host is needed no longer.

        If all members are to leave, they wait for a new member that takes the training's state over.
        """
        return self._let_go(member, True, now)

    def _let_go(self, member: int, has_time: bool, now: float) -> list[Action]:
        each = self._members.get(member)
        if each is None or each.is_leaving:
            return []
        each.is_leaving, each.has_time = True, has_time
        return [*(self._ask(now) if member in self.ranks else []), *self._next(now)]

    def gone(self, member: int, now: float) -> list[Action]:
        """The member's process has ended."""
        if self._members.pop(member, None) is None:
            return []
        if member not in self.ranks:
            return self._next(now)
        self.ranks = tuple(each for each in self.ranks if each != member)
        self._is_broken = self._has_lost = True
        return [*self._ask(now), *self._next(now)]

    def tick(self, now: float) -> list[Action]:
        """Call it at `deadline`, after all that members have said until `now`."""
        return self._expel_silent(now) + self._next(now)

    @property
    def deadline(self) -> float:
        """The time of the next `tick`; infinite if only an event can change anything."""
        if self.is_over:
            return math.inf
        asked_at = self._asked_at if self._late() else None
        waits = [(asked_at, self.limits.silence_s), (self._short_since, self.limits.wait_s)]
        return min((since + seconds for since, seconds in waits if since is not None), default=math.inf)

    # --- decisions ---

    def _ask(self, now: float) -> list[Action]:
        """Asks for a change all members of the epoch that do not wait for it already."""
        if self.is_over:
            return []
        self._asked_at = now
        asked = self._late()
        for member in asked:
            self._members[member].has_answered = False
        return [Change(asked, self._is_broken)] if asked else []

    def _late(self) -> tuple[int, ...]:
        """The members of the epoch that do not wait for the next one."""
        return tuple(each for each in self.ranks if self._members[each].position is None)

    def _next(self, now: float) -> list[Action]:
        if self.is_over:
            return []
        actions = self._release([each for each in self._members if each not in self.ranks])
        newcomers = tuple(id for id, each in self._members.items() if id not in self.ranks and each.can_stay)
        if newcomers and self.ranks and self._asked_at is None and len(self.ranks) < self.limits.most:
            actions += self._ask(now)
        if all(self._members[each].position is not None for each in self.ranks):
            actions += self._make_epoch(newcomers, now)
        return actions

    def _expel_silent(self, now: float) -> list[Action]:
        """Expels the members that have not answered in time, and asks the others again: they may be silent by now."""
        if self.is_over or self._asked_at is None or now < self._asked_at + self.limits.silence_s:
            return []
        silent = [each for each in self._late() if not self._members[each].has_answered]
        for member in silent:
            del self._members[member]
        self.ranks = tuple(each for each in self.ranks if each not in silent)
        if silent:
            self._is_broken = self._has_lost = True
        reason = f"it has not answered for {self.limits.silence_s:g} s"
        return [*(Expulsion(each, reason) for each in silent), *self._ask(now)]

    def _release(self, among: Iterable[int]) -> list[Action]:
        """Lets the members go that are leaving and wait for an epoch."""
        waiting = [id for id in among if self._members[id].is_leaving and self._members[id].position is not None]
        for member in waiting:
            del self._members[member]
        self.ranks = tuple(each for each in self.ranks if each in self._members)
        return [Release(each) for each in waiting]

    def _make_epoch(self, newcomers: tuple[int, ...], now: float) -> list[Action]:
        """Requires: all members of the current epoch wait for the next one, or have ended."""
        known = [self._members[each] for each in self.ranks]
        if known and all(each.position is not None and each.position.is_done for each in known):
            return self._end("")
        if self._has_trained and not any(each.has_state for each in known):
            return self._end("all members that had the training's state were lost; start the job again.")
        actions: list[Action] = []
        if not self._has_trained or any(each.has_state and not each.is_leaving for each in known):
            actions += self._release(self.ranks)
        elif all(each.is_leaving and not each.has_time for each in self._members.values()):
            return self._end("all members had to leave; start the job again.")
        elif not newcomers:
            return self._wait(0, now)  # those that leave keep the state until there is a member to hand it over to
        num_leaving = sum(self._members[each].is_leaving for each in self.ranks)
        found = (*self.ranks, *newcomers)[: self.limits.most + num_leaving]
        if len(found) >= (self.limits.least if self.epoch or self._is_late(now) else self.limits.first):
            return [*actions, self._begin(found)]
        return actions + self._wait(len(found), now)

    def _is_late(self, now: float) -> bool:
        """Whether members have waited for more of them as long as they may."""
        return self._short_since is not None and now >= self._short_since + self.limits.wait_s

    def _wait(self, num_found: int, now: float) -> list[Action]:
        """Waits for more members, or ends the job if it has waited long enough."""
        if self._is_late(now):
            text = f"{num_found} of at least {self.limits.least} members were ready after {self.limits.wait_s:g} s"
            return self._end(f"{text}; start the job again, with more hosts or a smaller least number.")
        if self._short_since is None:
            self._short_since = now
        return []

    def _begin(self, members: tuple[int, ...]) -> Epoch:
        waiting = [self._members[each].position or Position(has_state=False, step=0) for each in members]
        states = [(each.has_state, each.step) for each in waiting]
        epoch = Epoch(self.epoch + 1, members, states.index(max(states)), self._has_lost)
        self.epoch, self.ranks = self.epoch + 1, members
        self._asked_at = self._short_since = None
        self._is_broken = self._has_lost = False
        for member in members:
            self._members[member].position, self._members[member].is_synced = None, False
        return epoch

    def _end(self, reason: str) -> list[Action]:
        self.is_over = True
        return [End(reason)]
