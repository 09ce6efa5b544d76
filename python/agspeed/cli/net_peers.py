# SPDX-License-Identifier: Apache-2.0
"""`agspeed doctor --listen` and `--peer HOST[,HOST]`: examine the paths between hosts, and serve such examinations."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from agspeed.cli import net_checks
from agspeed.cli.checks import Check
from agspeed.distributed.messages import job_key
from agspeed.errors import AgspeedError, UserError
from agspeed.netprobe import HostRecord, Listener, Path, Rail, Survey, findings, survey_peers
from agspeed.reporting import format as fmt

__all__ = ["DEFAULT_PORT", "check_survey", "examine", "job_key", "listen", "matrix", "parse_ports", "this_host"]

DEFAULT_PORT = 29650
_IDLE_S = 1800.0
_POLL_S = 0.5
_SAY_AGAIN_S = 60.0
_MOST_ROWS = 30  # with more pairs of hosts, only pairs with problems are shown


def listen(ports: list[int]) -> int:
    """Serves doctors on other hosts until Ctrl-C, or until half an hour has passed without a visit. Returns 0."""
    key = job_key()
    visits = _Visits()
    with Listener(this_host(), key, ports, visits.note) as listener:
        rails = ", ".join(f"{rail.name} {rail.address}" for rail in listener.record.rails)
        print(f"{listener.record.name} listens at port {ports[0]}, with the rails {rails}.")
        whom = "hosts that have the same job key" if key else "all hosts, since there is no job key"
        print(f"It answers {whom}. Ctrl-C ends it; so do {_IDLE_S / 60:.0f} minutes without a visit.", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            while time.monotonic() - visits.last < _IDLE_S:
                time.sleep(_POLL_S)
    return 0


def examine(peers: list[str], port: int) -> Survey:
    """Examines all paths between this host and the peers. Raises: UserError, AgspeedError if it cannot begin."""
    return survey_peers(peers, this_host(), job_key(), port)


def check_survey(survey: Survey) -> Iterator[Check]:
    for found in findings(survey):
        yield Check(*found)


def this_host() -> HostRecord:
    """Returns this host's record, with the rails that a job would use here. Raises: AgspeedError if there are none."""
    chosen = net_checks.selected()
    if not chosen:
        raise AgspeedError("this host has no interface for jobs; `agspeed doctor --net` says why")
    rails = tuple(Rail(each.name, each.address, each.prefix_bits, each.mtu) for each in chosen)
    names = {rail.name for rail in rails}
    left_out = {each.name: each.reason for each in net_checks.all_interfaces() if each.name not in names}
    return HostRecord(socket.gethostname(), rails, left_out)


def parse_ports(text: str) -> list[int]:
    """Parses "29650" or "29650,29500". Raises: UserError."""
    words = text.split(",")
    if not all(word.isdecimal() and 1 <= int(word) <= 65535 for word in words):
        raise UserError(f"--port {text}: write a port from 1 to 65535, or several like {DEFAULT_PORT},29500")
    return [int(word) for word in words]


def matrix(survey: Survey) -> Iterator[Table | Text]:
    """Yields a table with a row for each pair of hosts and a column for each rail. If there are very many pairs, it
    shows only pairs with problems."""
    rails = list(dict.fromkeys(rail.name for host in survey.hosts for rail in host.rails))
    rows: dict[tuple[str, str], dict[str, Path]] = {(path.source, path.destination): {} for path in survey.paths}
    for path in survey.paths:
        rows[path.source, path.destination][path.rail] = path
    bad = {way: row for way, row in rows.items() if any(_fault(path) for path in row.values())}
    shown = rows if len(rows) <= _MOST_ROWS else bad
    silent = [(survey.hosts[0].name, peer, "no answer") for peer in survey.silent]
    silent += [(host, peer, "another key") for host, peer in survey.keys]
    if shown or silent:
        table = Table("from", "to", *rails, title="round trip, Mbit/s and largest packet in bytes, by rail")
        for (source, destination), row in shown.items():
            cells = (_cell(row.get(rail)) for rail in rails)
            table.add_row(source, destination, *cells)
        for source, destination, fault in silent:
            table.add_row(source, destination, *(Text(fault, style="bold red") for _ in rails))
        yield table
    if len(shown) < len(rows):
        yield Text(f"{len(rows) - len(shown)} more ways between hosts have no problems.")


def _cell(path: Path | None) -> Text:
    if path is None:
        return Text("-")
    fault = _fault(path)
    if path.round_trip_s is None:
        return Text(fault or "unknown", style="bold red")
    rate = "?" if path.bits_per_second is None else f"{path.bits_per_second / 1e6:,.0f}"
    facts = [fmt.milliseconds(1e3 * path.round_trip_s), rate, str(path.packet_bytes or "?")]
    text = Text(" · ".join(facts) + (f" to {path.remote_rail}" if path.remote_rail != path.rail else ""))
    return text.append(f"\n{fault}", style="bold red") if fault else text


def _fault(path: Path) -> str:
    """Returns a path's fault in a word or two, or "". The findings have the full sentence."""
    if not path.is_open:
        return "no way"
    blocked = [str(state.port) for state in path.ports if state.problem]
    if path.key and path.round_trip_s is None and not path.problem:
        return "another key"
    if path.problem:
        return "no answer"
    if blocked:
        return f"port {', '.join(blocked)} blocked"
    is_small = path.packet_bytes is not None and path.packet_bytes < path.wanted_packet_bytes
    return f"not {path.wanted_packet_bytes}" if is_small else ""


class _Visits:
    """Prints each visitor about once a minute. Called from the listener's threads."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self._lock = threading.Lock()
        self._said: dict[tuple[str, str], float] = {}

    def note(self, address: str, problem: str) -> None:
        with self._lock:
            now = time.monotonic()
            if not problem:
                self.last = now
            if now - self._said.get((address, problem), -_SAY_AGAIN_S) < _SAY_AGAIN_S:
                return
            self._said[address, problem] = now
        sys.stdout.write(f"{address} {problem or 'looks at this host'}.\n")  # one write, as visits may be concurrent
        sys.stdout.flush()
