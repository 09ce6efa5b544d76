# SPDX-License-Identifier: Apache-2.0
"""The launcher's part of the probe: it collects what agents say of their own interfaces and of other hosts.

Threading: one thread owns a `Survey`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from agspeed.launch.frames import FrameError
from agspeed.launch.reach.decision import Decision, Failure, decide
from agspeed.netprobe import HostRecord
from agspeed.netprobe.model import text

__all__ = ["Survey"]

_LONGEST_S = 30.0


class Survey:
    """The answers of the agents, by the names of their hosts.

    Attributes:
        deadline: after it, the job goes on without an answer (time.monotonic()); infinite before `begin`.
    """

    def __init__(self, names: Sequence[str], joining: Sequence[str] | None = None) -> None:
        """
        Args:
            names: all hosts.
            joining: the hosts that look at the others, and may leave interfaces out; None for all.
        """
        self.deadline = math.inf
        self._names, self._joining = list(names), list(names if joining is None else joining)
        self._key = os.urandom(32).hex()
        self._hosts: dict[str, tuple[str, HostRecord]] = {}
        self._failures: dict[str, list[Failure]] = {}

    def probe(self, name: str) -> Mapping[str, str]:
        """Returns the part of the agent's "job" that asks for the probe."""
        return {"name": name, "key": self._key}

    def begin(self) -> None:
        """All hosts are ready, so they should answer soon. Repeated calls do nothing."""
        self.deadline = min(self.deadline, time.monotonic() + _LONGEST_S)

    def note_rails(self, name: str, value: Any) -> None:
        """Takes the interfaces of a host. Raises: FrameError for anything else."""
        try:
            found = HostRecord.from_json(value["record"])
            self._hosts[name] = text(value["identity"]), HostRecord(name, found.rails)
        except (KeyError, TypeError, ValueError):
            raise FrameError("interfaces that are none") from None

    def note_failures(self, name: str, value: Any) -> None:
        """Takes what a host has not reached. Raises: FrameError for anything else."""
        try:
            rows = [list(map(text, row)) for row in value]
            self._failures[name] = [Failure(name, *row) for row in rows if row[1] in self._names]
        except (IndexError, TypeError):
            raise FrameError("failures that are none") from None

    def drop(self, name: str) -> None:
        """Goes on without a host that was lost."""
        self._names = [each for each in self._names if each != name]
        self._joining = [each for each in self._joining if each != name]

    @property
    def has_rails(self) -> bool:
        """Whether all hosts have named their interfaces."""
        return self._hosts.keys() >= set(self._names)

    @property
    def is_complete(self) -> bool:
        return self.has_rails and self._failures.keys() >= set(self._joining)

    def others(self, name: str) -> list[dict[str, Any]]:
        """Returns the hosts that a host is to reach: all that do not share its machine and network."""
        own, _ = self._hosts[name]
        known = [self._hosts[each] for each in self._names]
        return [record.to_json() for identity, record in known if identity != own]

    def decision(self) -> Decision:
        """Returns what follows. Agents that have not answered in time leave everything as it is."""
        if not self.is_complete:
            answers = self._failures if self.has_rails else self._hosts
            silent = next(each for each in (self._joining if self.has_rails else self._names) if each not in answers)
            return Decision({}, [f"interfaces were not probed: host {silent} has not answered in {_LONGEST_S:g} s"])
        hosts = [self._hosts[name][1] for name in self._names]
        failures = [failure for each in self._joining for failure in self._failures[each]]
        known = [each for each in failures if each.destination in self._names]
        return decide(hosts, known, [each for each in self._names if each not in self._joining])
