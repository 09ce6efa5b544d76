# SPDX-License-Identifier: Apache-2.0
"""The launcher's side of the agents of a job, one per host (`agent.py`).

The ranks start when all agents are ready, so a host that cannot be reached ends the job before any rank has run. The
first rank that fails ends the ranks of all hosts. Agents are checked as strangers are: their frames have bounds, and
their values have the expected types and ranges.

Threading: one thread makes and leaves `Agents`. If that thread ends, the kernel acts as if the launcher had died.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from agspeed.errors import AgspeedError
from agspeed.launch import frames
from agspeed.launch.connection import Connection
from agspeed.launch.description import Description, address_of_first
from agspeed.launch.exchange import Call
from agspeed.launch.output import Output
from agspeed.launch.placement import Share, variables
from agspeed.launch.reach.choice import choice
from agspeed.launch.reach.survey import Survey
from agspeed.launch.starters import Starter

__all__ = ["Agents", "Plan"]


@dataclass(frozen=True)
class Plan:
    """The job, as the agents of all hosts run it.

    Attributes:
        shares: the hosts, with their ranks.
        starters: by host, in the order of `shares`.
        jobs: by host, the agent's "job".
        variables: every rank gets them.
        master_address: where rank 0 listens; None for an address that the agents report.
        call: the call that the ranks make; None if they run a command only.
        probes: whether the hosts' interfaces are probed before the ranks start.
    """

    shares: Sequence[Share]
    starters: Sequence[Starter]
    jobs: Sequence[Mapping[str, Any]]
    variables: Mapping[str, str]
    master_address: str | None
    start_timeout_s: float
    call: Call | None = None
    probes: bool = False


class Agents:
    """The agents of all hosts; a context manager. Leaving it ends the ranks that still run, and waits for their end.

    Attributes:
        first_failed: the first rank that ended with another status than 0, and that status (minus the signal).
        notes: sentences for the user, of which the job does not fail.
    """

    def __init__(self, plan: Plan, output: Output) -> None:
        self.first_failed: tuple[int, int] | None = None
        self.notes: list[str] = []
        self._plan, self._output = plan, output
        self._agents: list[_Agent] = []
        self._has_started = self._is_ending = False
        self._start_deadline = time.monotonic() + plan.start_timeout_s
        self._survey: Survey | None = None

    def __enter__(self) -> Self:
        names = [share.host.name for share in self._plan.shares]
        self._survey = Survey(names) if self._plan.probes and len(names) > 1 else None
        try:
            for share, starter, job in zip(self._plan.shares, self._plan.starters, self._plan.jobs, strict=True):
                probe = None if self._survey is None else self._survey.probe(share.host.name)
                whole = {**job, "probe": probe}
                self._agents.append(_Agent(share, starter, self._output, whole, self._plan.call, self._survey))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        while not self.are_over:
            ready = self._output.wait(self.events(), self.seconds_left())
            for each in self._agents:
                try:
                    each.note(ready)
                except AgspeedError:  # the job has ended for another reason
                    each.kill()
        for each in self._agents:
            each.close()
            if each.is_lost:
                self.notes.append(f"{each.share} did not confirm the end of its ranks; look for processes there.")

    @property
    def are_over(self) -> bool:
        """Whether all agents have ended, and with them all ranks."""
        return all(each.is_over for each in self._agents)

    def events(self) -> dict[int, int]:
        """The descriptors to wait for before `note`, with their events for select.poll()."""
        return {descriptor: event for each in self._agents for descriptor, event in each.events().items()}

    def seconds_left(self) -> float:
        """After which time `note` has to be called, even if nothing happens."""
        deadlines = [each.deadline for each in self._agents if not each.is_over]
        if not self._has_started and not self._is_ending:
            deadlines.append(self._start_deadline)
            deadlines += [] if self._survey is None else [self._survey.deadline]
        return max(0.0, min(deadlines, default=math.inf) - time.monotonic())

    def note(self, ready: Collection[int]) -> None:
        """Takes frames, starts the ranks once all hosts are ready, and ends them after the first failure.

        Raises: AgspeedError if a host cannot be reached, cannot start its ranks, or is lost; it names host and ranks.
        """
        for each in self._agents:
            each.note(ready)
            if self.first_failed is None:
                self.first_failed = each.first_failed
        if self.first_failed is not None:
            self.end()
        if not self._has_started and not self._is_ending:
            self._start()

    def end(self) -> None:
        """Ends the ranks of all hosts: SIGTERM, then SIGKILL after some seconds. Does not wait for the end."""
        self._is_ending = True
        for each in self._agents:
            each.end()

    def name_of(self, rank: int) -> str:
        """Names a rank for the user."""
        share = next(share for share in self._plan.shares if rank in share.ranks)
        is_on_other = any(not each.host.is_local for each in self._plan.shares)
        return f"rank {rank} on host {share.host.name}" if is_on_other else f"rank {rank}"

    def _start(self) -> None:
        """Starts the ranks if all agents are ready."""
        waiting = [each for each in self._agents if each.description is None]
        if not waiting:
            if self._survey is None or self._has_probed(self._survey):
                self._has_started = True
                self._start_ranks([each.description for each in self._agents if each.description is not None])
            return
        remote = [each for each in waiting if not each.host.is_local]
        if remote and time.monotonic() >= self._start_deadline:
            raise AgspeedError(
                f"{remote[0].share} was not ready after {self._plan.start_timeout_s:g} s; check that the host is up "
                f"and that `{remote[0].attempt}` is quick, or raise --start-timeout."
            )

    def _has_probed(self, survey: Survey) -> bool:
        """Lets the hosts reach each other. Returns: whether all have answered, or time is over."""
        survey.begin()
        if survey.has_rails:
            for each in self._agents:
                each.ask(survey.others(each.host.name))
        return survey.is_complete or time.monotonic() >= survey.deadline

    def _start_ranks(self, described: Sequence[Description]) -> None:
        shares, given = self._plan.shares, self._plan.master_address
        for share, description, job in zip(shares, described, self._plan.jobs, strict=True):
            description.check_version(str(share))
            if description.folder:
                self._output.write_note(
                    f"{share} has no folder {job['folder']}, so its ranks run in {description.folder}"
                )
        address = given or address_of_first(shares, described)
        interfaces = self._decided_interfaces()
        for each in self._agents:
            own = [variables(shares, rank, address, described[0].port) for rank in each.share.ranks]
            of_host = {**self._plan.variables, **interfaces.get(each.host.name, {})}
            each.start([{**of_host, **of_rank} for of_rank in own])

    def _decided_interfaces(self) -> Mapping[str, Mapping[str, str]]:
        """Returns variables of the hosts that leave interfaces out."""
        if self._survey is None:
            return {}
        decision = self._survey.decision()
        for sentence in decision.sentences:
            self._output.write_note(sentence)
        return {host: choice(names) for host, names in decision.kept.items()}


class _Agent(Connection):
    """The agent of one host, and its share of the ranks.

    Attributes:
        first_failed: the first of its ranks that ended with another status than 0, and that status.
    """

    def __init__(
        self,
        share: Share,
        starter: Starter,
        output: Output,
        job: Mapping[str, Any],
        call: Call | None,
        survey: Survey | None,
    ) -> None:
        self.share = share
        self.first_failed: tuple[int, int] | None = None
        self._survey, self._has_asked = survey, False
        super().__init__(share.host, str(share), starter, output, job, call=call)

    def ask(self, others: Sequence[Mapping[str, Any]]) -> None:
        """Lets the host reach others. Repeated calls do nothing."""
        if not self._has_asked:
            self._has_asked = True
            self._link.send("others", list(others))

    def start(self, ranks: Sequence[Mapping[str, str]]) -> None:
        self._has_started = True
        self._link.send("start", [dict(each) for each in ranks])

    def _note_of_job(self, frame: frames.Frame) -> None:
        ranks = self.share.ranks if self._has_started else range(0)
        match frame.kind, frame.value:
            case "output", [int(rank), 0 | 1 as stream] if 0 <= rank < len(ranks):
                self._pass_on(ranks[rank], stream, frame.data, len(ranks))
            case "failed", [int(rank), int(status)] if 0 <= rank < len(ranks) and -128 < status < 256 and status:
                self.first_failed = self.first_failed or (ranks[rank], status)
            case "rails", value if self._survey is not None and not self._has_asked:
                self._survey.note_rails(self.host.name, value)
            case "failures", value if self._survey is not None and self._has_asked:
                self._survey.note_failures(self.host.name, value)
            case "result", [int(rank), bool(is_last)] if self._call is not None and 0 <= rank < len(ranks):
                self._call.add(ranks[rank], is_last, frame.data)
            case _:
                raise frames.FrameError(repr(frame.kind[:60]))
