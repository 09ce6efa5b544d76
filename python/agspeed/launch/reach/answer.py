# SPDX-License-Identifier: Apache-2.0
"""An agent's part of the probe: it listens on this host's interfaces, and connects to the other hosts.

Each connection shows by a random key of this probe that the agents of one job have met, and not a stranger with the
same address. Ports are closed when the ranks start.

Threading: the agent's thread, and threads of `Listener` and `reach`, which end before the ranks start or do nothing
more.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from agspeed.errors import AgspeedError
from agspeed.launch.launcher_link import LauncherLink
from agspeed.launch.reach.interfaces import identity, rails
from agspeed.netprobe import HostRecord, Listener
from agspeed.netprobe.peers import reach, routes_to
from agspeed.netprobe.probe import Prober

__all__ = ["answering"]

_LOOK_S = 20.0
_MOST_FAILURES = 500


@contextlib.contextmanager
def answering(link: LauncherLink, probe: Mapping[str, Any]) -> Iterator[None]:
    """Tells the launcher which interfaces of other hosts this one does not reach. It listens until the block ends.

    probe: this host's name and the key of the probe. Raises: ClosedError if the launcher ends the job.
    """
    key = bytes.fromhex(probe["key"])
    with _listener(HostRecord(probe["name"], rails()), key) as (record, listens):
        link.send("rails", {"identity": identity(), "record": record.to_json()})
        asked = link.wait_for_frame("others", "start")
        if asked.kind == "start":  # the launcher has not waited for this host
            link.received.insert(0, asked)
            yield
            return
        others = [HostRecord.from_json(each) for each in asked.value]
        routes = [route for other in others if listens for route in routes_to(record, other)]
        deadline = time.monotonic() + _LOOK_S
        paths = reach(routes, Prober(record.name, key, deadline), deadline)
        failed = [[each.rail, each.destination, each.remote_rail, each.problem] for each in paths if each.problem]
        link.send("failures", failed[:_MOST_FAILURES])
        yield


@contextlib.contextmanager
def _listener(host: HostRecord, key: bytes) -> Iterator[tuple[HostRecord, bool]]:
    """Yields the host with its ports, and True; without interfaces and False if no port can be opened."""
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(Listener(host, key)).record, True
        except AgspeedError:
            yield HostRecord(host.name, ()), False
