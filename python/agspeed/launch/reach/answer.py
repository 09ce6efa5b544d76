# SPDX-License-Identifier: Apache-2.0
"""An agent's part of the probe: it listens on this host's interfaces, and connects to the other hosts.

Each connection shows by a random key of this probe that the agents of one job have met, and not a stranger with the
same address. Ports are closed when the ranks start, or at the end of the probe in an elastic job.

Threading: the agent's thread, and threads of `Listener` and `reach`, which end with the probe or do nothing more.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from agspeed.errors import AgspeedError
from agspeed.launch.launcher_link import LauncherLink
from agspeed.launch.reach.interfaces import identity, rails
from agspeed.netprobe import HostRecord, Listener
from agspeed.netprobe.peers import reach, routes_to
from agspeed.netprobe.probe import Prober

__all__ = ["Answers", "answering"]

_LOOK_S = 20.0
_MOST_FAILURES = 500


class Answers:
    """A host's answers in one probe. It listens until `close`."""

    def __init__(self, link: LauncherLink, probe: Mapping[str, Any], chosen: Collection[str] = ()) -> None:
        """Tells the launcher which interfaces this host has.

        Args:
            probe: this host's name and the key of the probe.
            chosen: the names of the interfaces that the ranks here use; none for all.
        """
        self._link, self._key = link, bytes.fromhex(probe["key"])
        self._stack = contextlib.ExitStack()
        self._record, self._listens = HostRecord(probe["name"], ()), False
        used = tuple(each for each in rails() if not chosen or each.name in chosen)
        with contextlib.suppress(AgspeedError):  # no port can be opened
            listener = Listener(HostRecord(probe["name"], used), self._key)
            self._record, self._listens = self._stack.enter_context(listener).record, True
        link.send("rails", {"identity": identity(), "record": self._record.to_json()})

    def look(self, others: Sequence[Any]) -> None:
        """Tells the launcher which interfaces of other hosts this one does not reach."""
        hosts = [HostRecord.from_json(each) for each in others]
        routes = [route for other in hosts if self._listens for route in routes_to(self._record, other)]
        deadline = time.monotonic() + _LOOK_S
        paths = reach(routes, Prober(self._record.name, self._key, deadline), deadline)
        failed = [[each.rail, each.destination, each.remote_rail, each.problem] for each in paths if each.problem]
        self._link.send("failures", failed[:_MOST_FAILURES])

    def close(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def answering(link: LauncherLink, probe: Mapping[str, Any]) -> Iterator[None]:
    """Answers the probe of a job of a fixed size, and listens until the block ends.

    Raises: ClosedError if the launcher ends the job.
    """
    with contextlib.closing(Answers(link, probe)) as answers:
        asked = link.wait_for_frame("others", "start")
        if asked.kind == "start":  # the launcher has not waited for this host
            link.received.insert(0, asked)
        else:
            answers.look(asked.value)
        yield
