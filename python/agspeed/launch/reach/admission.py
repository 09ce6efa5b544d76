# SPDX-License-Identifier: Apache-2.0
"""The launcher's part of the probes in an elastic job: a host is admitted before its first member starts there.

The first hosts are probed together, as in a job of a fixed size. A host that comes later is probed alone or with others
that come: it connects to the hosts whose members train, and may leave interfaces out. The members of other hosts keep
theirs, so the training does not wait.

Threading: one thread owns an `Admission`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from agspeed.launch.member_host import MemberHost
from agspeed.launch.output import Output
from agspeed.launch.reach.survey import Survey

__all__ = ["Admission"]


class Admission:
    """The probe that is under way, if there is one."""

    def __init__(self, output: Output, *, probes: bool) -> None:
        """probes: whether interfaces are probed. Otherwise each host is admitted at once."""
        self._output, self._probes = output, probes
        self._survey: Survey | None = None
        self._hosts: list[MemberHost] = []  # of this probe

    @property
    def deadline(self) -> float:
        """When `note` has something to do at the latest (time.monotonic())."""
        return math.inf if self._survey is None else self._survey.deadline

    def note(self, hosts: Sequence[MemberHost], now: float) -> None:
        """Takes answers, admits hosts, and begins the next probe. hosts: all hosts of the job."""
        if self._survey is not None:
            self._go_on(self._survey, now)
        if self._survey is None:
            self._begin(hosts)

    def close(self) -> None:
        """Ends the probe, because the job ends."""
        self._survey, self._hosts = None, []

    def _begin(self, hosts: Sequence[MemberHost]) -> None:
        ready = [each for each in hosts if each.is_wanted and each.is_ready]
        joining = [each for each in ready if not each.is_admitted]
        are_first = len(joining) == len(ready)
        if not joining or (are_first and any(each.is_being_connected for each in hosts)):
            return
        if not self._probes or len(ready) == 1:
            for each in joining:
                each.admit(())
            return
        names = [each.host.name for each in joining]
        self._hosts, self._survey = ready, Survey([each.host.name for each in ready], names)
        for each in ready:
            each.probe(self._survey)
        self._survey.begin()

    def _go_on(self, survey: Survey, now: float) -> None:
        for lost in [each for each in self._hosts if not each.is_probed_by(survey)]:
            survey.drop(lost.host.name)
            self._hosts.remove(lost)
        joining = [each for each in self._hosts if not each.is_admitted]
        if survey.has_rails:
            for each in joining:
                each.ask(survey.others(each.host.name))
        if joining and not survey.is_complete and now < survey.deadline:
            return
        self._survey = None
        decision = survey.decision()
        for sentence in decision.sentences if joining else ():
            self._output.write_note(sentence)
        for each in self._hosts:
            each.admit(() if each.is_admitted else decision.kept.get(each.host.name, ()))
        self._hosts = []
