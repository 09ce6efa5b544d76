# SPDX-License-Identifier: Apache-2.0
"""One trial: a fault at a random moment of a running group, and functions that measure its effect.

Every wait is bounded: a wait longer than `HANG_S` raises `HangError`. An unexpected failure of a rank, or one of an
unexpected kind, raises `WrongError`.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence

from agspeed import netbed
from tests.fault.scenarios.group import RANKS, Counters, Group, Options

__all__ = ["HANG_S", "HangError", "Trial", "WrongError"]

HANG_S = 40.0
_BEFORE_S = (0.2, 0.5)


class HangError(Exception):
    """An expected event did not happen in time."""


class WrongError(Exception):
    """An event happened that must not happen."""


class Trial:
    """The constructor waits for a random time without a fault; the scenario injects its fault next."""

    def __init__(self, bed: netbed.Netbed, group: Group, options: Options, chance: random.Random) -> None:
        self.bed = bed
        self.group = group
        self.options = options
        self.random = chance
        self.notes: dict[str, float] = {}  # further figures
        group.forget()
        started = time.monotonic()
        group.follow(chance.uniform(*_BEFORE_S))
        self.quiet_ms = 1000 * group.longest_excess_s(started)  # the result of `stall_ms` without any fault
        self._before = [self._counters(index) for index in range(RANKS)]
        self.begin = time.monotonic()

    # --- where -------------------------------------------------------------------------------------------------------

    def some_host(self) -> netbed.Host:
        return self.bed.hosts[self.random.randrange(RANKS)]

    def some_rail(self) -> netbed.Rail:
        return self.random.choice(self.some_host().rails)

    def rails(self, number: int) -> list[netbed.Rail]:
        """Returns every rank's interface on one rail."""
        return [host.rails[number] for host in self.bed.hosts[:RANKS]]

    # --- when --------------------------------------------------------------------------------------------------------

    def hold(self, seconds: float) -> None:
        """Waits while a fault lasts. Raises WrongError if a rank fails."""
        self.group.follow(seconds)
        self._check()

    def hold_between(self, at_least_s: float, at_most_s: float) -> None:
        self.hold(self.random.uniform(at_least_s, at_most_s))

    def wait_for(self, what: str, is_reached: Callable[[], bool]) -> None:
        """Waits until then while the ranks go on. Raises HangError if it takes too long, WrongError if a rank fails."""
        if not self.group.wait_for(lambda: is_reached() or not self.group.is_whole, HANG_S):
            raise HangError(f"{what}: not within {HANG_S:g} s\n{self.group.story()}")
        self._check()

    def go_on(self) -> None:
        """Waits until every rank has ended an operation that began after now, and carries bytes on each of its
        rails."""
        now = time.monotonic()
        first: dict[int, Counters] = {}

        def goes_on(index: int) -> bool:
            member = self.group.members[index]
            counters = self._counters(index)
            if counters.at < now or not any(operation.begin > now for operation in member.operations):
                return False
            earlier = first.setdefault(index, counters)
            return all(after > before for after, before in zip(counters.sent, earlier.sent, strict=True))

        self.wait_for("all ranks go on over all rails", lambda: all(goes_on(index) for index in range(RANKS)))

    # --- results
    # ---------------------------------------------------------------------------------------------------------

    def stall_ms(self) -> float:
        """The largest delay of an operation since the fault began: its time minus the usual time."""
        self.go_on()
        return 1000 * self.group.longest_excess_s(self.begin)

    def resumed_ms(self, since: float) -> float:
        """The time from `since` until the last rank has ended an operation."""
        self.go_on()
        ends = [
            min(operation.end for operation in member.operations if operation.end > since)
            for member in self.group.members
        ]
        return 1000 * (max(ends) - since)

    def speed(self, seconds: float) -> float:
        """Reduced bytes per second over the next `seconds`."""
        begin = time.monotonic()
        self.hold(seconds)
        return self.group.bytes_per_s(begin)

    def failed_ms(self, victim: int, survivors: Sequence[int]) -> float:
        """The time from the fault until the last survivor has failed. Each error must name the victim before other
        ranks."""
        members = [self.group.members[index] for index in survivors]
        if not self.group.wait_for(lambda: all(member.failure for member in members), HANG_S):
            raise HangError(f"not all of ranks {list(survivors)} failed within {HANG_S:g} s\n{self.group.story()}")
        failures = [member.failure for member in members if member.failure]
        for failure in failures:
            first = re.search(r"rank \d+", failure.message)
            is_named = first and first[0] == f"rank {victim}" and f"rank {victim} is lost" in failure.message
            if failure.error != "DistBackendError" or not is_named:
                raise WrongError(f"the loss of rank {victim} was reported as {failure.error}: {failure.message}")
        return 1000 * (max(failure.at for failure in failures) - self.begin)

    def counted(self, name: str) -> float:
        """The growth of a counter since the fault began, summed over all ranks."""
        return sum(self._growth(name))

    def greatest_growth(self, name: str) -> float:
        """Like `counted`, but the largest growth of any rank."""
        return max(self._growth(name))

    def _growth(self, name: str) -> list[float]:
        now = (self._counters(index) for index in range(RANKS))
        return [getattr(after, name) - getattr(before, name) for after, before in zip(now, self._before, strict=True)]

    def _counters(self, index: int) -> Counters:
        counters = self.group.members[index].counters
        assert counters is not None, "a group is warm before its first trial"
        return counters

    def _check(self) -> None:
        if not self.group.is_whole:
            raise WrongError(f"a rank failed or ended: {self.group.failures()}\n{self.group.story()}")
