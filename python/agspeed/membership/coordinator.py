# SPDX-License-Identifier: Apache-2.0
"""Decides which members train together in an elastic job: a state machine without clocks, processes or connections.

A member is a process of the job. Its id is never used again. An epoch is a group of members that train together, with
ranks from 0. The members of an epoch ask for the next one when a peer is lost, when the coordinator wants a change
(`Change`), or when they are done. They wait until it is announced (`Epoch`). Each epoch has one announcement, which all
of its members get, so no two groups can train at the same time.

    member 0   ready ──► Epoch 1 (0, 1)   lost peer, ready ──► Epoch 2 (0, 2)
    member 1   ready ──► Epoch 1 (0, 1)   killed
    member 2                              started, ready ────► Epoch 2 (0, 2), with the state of member 0

A launcher that follows a killed one makes the coordinator anew (`Coordinator.rebuilt`): from the `Progress` that agents
keep, and from a `Report` of each member. Members that train go on in their epoch if all of them have its state. The
next epoch has the next number.

Each function takes the time, in seconds from any start, and returns what has to be done now. Threading: none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from agspeed.membership.actions import Action, Change, End, Epoch, Expulsion, Release

__all__ = ["Coordinator", "Limits", "Position", "Progress", "Report"]


@dataclass(frozen=True)
class Limits:
    """least, most: how many members may train together; first: how many the first epoch waits for."""

    least: int
    most: int
    first: int
    silence_s: float = 4.0
    """A member that does not answer a `Change` for this long is expelled. A pause of 3 s, for example of its virtual
    machine, costs no member its place."""
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
class Progress:
    """How far a job has come. Agents keep the newest one for a launcher that follows.

    Attributes:
        epoch: the number of the newest epoch.
        num_known: how many members there were; each id below has been used.
        has_trained: whether any member has had the training's state.
        end: why the job is over, empty if the training is done; None while it is not over.
    """

    epoch: int = 0
    num_known: int = 0
    has_trained: bool = False
    end: str | None = None


@dataclass(frozen=True)
class Report:
    """A member, as it describes itself to a new coordinator. A member that has said nothing yet has the default.

    Attributes:
        epoch, rank, size: of its newest epoch; 0 before the first.
        waiting: where it waits for the next epoch; None while it does not wait.
        is_synced: whether it has the epoch's state.
        is_leaving: whether it has to leave.
        wants_change: whether the epoch has to end: a peer is lost, or the earlier coordinator has asked for the end.
        is_broken: whether that is because members have failed to reach each other.
    """

    epoch: int = 0
    rank: int = 0
    size: int = 0
    waiting: Position | None = None
    is_synced: bool = False
    is_leaving: bool = False
    wants_change: bool = False
    is_broken: bool = False


@dataclass
class _Member:
    epoch: int = 0
    """The newest epoch that it belongs to."""
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
    _end_reason: str | None = None
    """Why the job is over; None while it is not."""

    @classmethod
    def rebuilt(
        cls, limits: Limits, progress: Progress, reports: Mapping[int, Report], now: float
    ) -> tuple[Self, list[Action]]:
        """Returns: the coordinator that follows a lost one, and what to do. reports: of all members, by their ids."""
        new = cls(limits)
        new.epoch = max([progress.epoch, *(each.epoch for each in reports.values())])
        new._num_known = max([progress.num_known, *(member + 1 for member in reports)])
        new._has_trained = progress.has_trained or any(
            each.is_synced or (each.waiting is not None and each.waiting.has_state) for each in reports.values()
        )
        for member, each in reports.items():
            new._members[member] = _Member(each.epoch, each.waiting, each.is_leaving, is_synced=each.is_synced)
        placed = {member: each for member, each in reports.items() if each.epoch}
        # Some may not have got the newest announcement. They come last, as members that are late.
        new.ranks = tuple(sorted(placed, key=lambda member: (-placed[member].epoch, placed[member].rank)))
        if progress.end is not None:
            return new, new._end(progress.end)
        new._has_lost = any((each.epoch, each.size) != (new.epoch, len(placed)) for each in placed.values())
        new._is_broken = new._has_lost or any(each.is_broken or not each.is_synced for each in placed.values())
        has_to_end = any(
            each.wants_change or each.is_leaving or (each.waiting is not None and not each.waiting.is_done)
            for each in placed.values()
        )
        return new, [*(new._ask(now) if new._is_broken or has_to_end else []), *new._next(now)]

    @property
    def progress(self) -> Progress:
        """The knowledge that a coordinator needs besides the members' reports, if it follows this one."""
        return Progress(self.epoch, self._num_known, self._has_trained, self._end_reason)

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
        if each is None or epoch != each.epoch:
            return []
        each.position, each.has_answered = position, True
        self._has_trained |= position.has_state
        return self._next(now)

    def lost(self, member: int, epoch: int, now: float) -> list[Action]:
        """The member has lost a peer of this epoch."""
        if member not in self.ranks or epoch != self._members[member].epoch:
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
        if member not in self.ranks or epoch != self._members[member].epoch:
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
        elif not newcomers and not any(self._members[each].can_stay for each in self.ranks):
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
            each = self._members[member]
            each.epoch, each.position, each.is_synced = epoch.number, None, False
        return epoch

    def _end(self, reason: str) -> list[Action]:
        self.is_over, self._end_reason = True, reason
        return [End(reason)]
