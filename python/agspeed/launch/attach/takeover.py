# SPDX-License-Identifier: Apache-2.0
"""A new launcher's view of a job that it takes over: what hosts and members have reported so far.

Each member reports once. Its messages before the report are in the report, and those behind it wait until the
coordinator is made.

Threading: the launcher's thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from agspeed.errors import UserError
from agspeed.launch.member_host import MemberHost
from agspeed.membership.actions import Action
from agspeed.membership.coordinator import Coordinator, Limits, Progress, Report
from agspeed.membership.messages import line_of, report_of

__all__ = ["Takeover"]


class Takeover:
    """What is known of the job.

    Attributes:
        key: the job's key, as the first host says.
        later: messages for the coordinator: member, kind and value.
        ends: members that have ended, and their statuses.
        summary: a sentence of a member for the end of the job; empty if there is none.
    """

    def __init__(self, job: str, limits: Limits) -> None:
        """job: its name."""
        self.key: str | None = None
        self.later: list[tuple[int, str, Any]] = []
        self.ends: list[tuple[int, int]] = []
        self.summary = ""
        self._job, self._limits = job, limits
        self._num_hosts = self._num_dropped = 0
        self._failures: list[str] = []  # of hosts that have not reported
        self._progress = Progress()
        self._reports: dict[int, Report | None] = {}  # None: the member was asked
        self._asked_at = -math.inf

    @property
    def deadline(self) -> float:
        """Until when members may report (time.monotonic()); infinite if all have reported."""
        return self._asked_at + self._limits.silence_s if self.silent() else math.inf

    def waits(self, now: float) -> bool:
        """Whether members may still report."""
        return now < self.deadline < math.inf

    def hear_host(self, host: MemberHost, now: float) -> list[tuple[int, int]]:
        """Takes a host's report, and asks its members. Returns: members that it has or had, with their slots."""
        report = host.take_report()
        if report is None:
            return []
        if not self._num_hosts:
            self.key = report.key
        self._num_hosts += 1
        self._num_dropped += report.num_dropped
        old, new = self._progress, report.progress
        self._progress = Progress(
            max(old.epoch, new.epoch),
            max(old.num_known, new.num_known),
            old.has_trained or new.has_trained,
            new.end if old.end is None else old.end,
        )
        for member, _, has_spoken in report.living:
            self._reports[member] = None if has_spoken else Report()  # one that is silent may not listen for long
            if has_spoken:
                host.tell(member, line_of("report", 0))
        self._asked_at = now
        self.ends += report.gone
        return [*((member, slot) for member, slot, _ in report.living), *((member, -1) for member, _ in report.gone)]

    def hear(self, member: int, kind: str, value: Any) -> None:
        """Takes a message of a member. Raises: MessageError for a report that is none."""
        if kind == "report":
            self._reports[member] = report_of(value)
        elif kind == "summary":
            self.summary = str(value)
        elif self._reports.get(member) is not None:
            self.later.append((member, kind, value))

    def drop(self, member: int) -> None:
        """The member has ended."""
        self._reports.pop(member, None)

    def lose_host(self, members: Sequence[int], reason: str) -> None:
        """A host was lost with its members. reason: a sentence."""
        self._failures.append(reason)
        for member in members:
            self.drop(member)

    def silent(self) -> list[int]:
        """The members that have not reported."""
        return [member for member, each in self._reports.items() if each is None]

    def check(self, hosts: Sequence[MemberHost]) -> None:
        """Raises: UserError if no host has reported members of the job."""
        if self._num_hosts:
            return
        if self._failures:
            raise UserError(
                f"job {self._job} was not taken over, because no agent of it has answered: {' '.join(self._failures)} "
                "Its processes may still run there. Attach again when the host answers, or end them there."
            )
        names = ", ".join(each.host.name for each in hosts) or "any host"
        raise UserError(
            f"no processes of job {self._job} were found on {names}; give the name and the hosts of the first "
            "launcher. If it was killed longer ago than --launcher-grace says, start the job again."
        )

    def coordinator(self, now: float) -> tuple[Coordinator, list[Action]]:
        """Returns: the coordinator of the members that have reported, and what to do."""
        reports = {member: each for member, each in self._reports.items() if each is not None}
        return Coordinator.rebuilt(self._limits, self._progress, reports, now)

    def sentence(self) -> str:
        """Says what was found, for the user."""
        num_lost, dropped = len(self.ends), ""
        lost = f"; {num_lost} ended meanwhile" if num_lost else ""
        if self._num_dropped:
            dropped = f"; {self._num_dropped} bytes of their output were dropped"
        return f"attached to job {self._job} with {len(self._reports)} ranks{lost}{dropped}"
