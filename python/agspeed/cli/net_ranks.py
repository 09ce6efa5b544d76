# SPDX-License-Identifier: Apache-2.0
"""`agspeed doctor --net` under torchrun: one rank of every host examines all other hosts, and rank 0 prints the result.

Hosts find each other through torch's store at MASTER_ADDR:MASTER_PORT, as the ranks of a job do:

    host i sets    doctor/host/i     its record, and the problems that its own checks found
    host 0 sets    doctor/hosts      the hosts that have come in time: all of them examine each other at once
    host i sets    doctor/looked/i   when it has finished; then rounds measure rates, from host i to host i + round
    host i sets    doctor/paths/i    its results
    host 0 sets    doctor/verdict    the exit code of all hosts

Every wait has a limit; the output names hosts that are missing then. Records are shown as the hosts wrote them, and
each host is examined at the addresses in its record. The store's entries carry no proof of the job key, so that hosts
with different keys are found (`netprobe/keys.py`).
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from agspeed import bounded_json
from agspeed.cli import net_checks, net_peers
from agspeed.cli.checks import Check
from agspeed.distributed.messages import count, plain
from agspeed.errors import AgspeedError, UserError
from agspeed.netprobe import HostRecord, Listener, Path, Survey
from agspeed.netprobe.peers import LOOK_S, STREAM_S, look_at, measure_to, routes_to
from agspeed.netprobe.probe import Prober

__all__ = ["Place", "SurveyHost", "open_survey", "place"]

_STORE_S = 10.0
_COME_S = 10.0  # how long the first host waits for the others
_POLL_S = 0.02
_ROUND_S = STREAM_S + 0.4
_LATE_S = 5.0  # how much later than another host a host may be
_MOST_BYTES = 1 << 22  # the largest entry of a host
_MOST_ROWS = 1 << 12
_MOST_LETTERS = 2000
_MOST_CODE = 255
_FIRST_S = 60.0  # the first host also checks itself and may be busy for this long
_START_ALL = "start this command on all hosts within a minute, each with its own --node-rank, and read its output there"


class Place(NamedTuple):
    """This host's number, the number of hosts, and whether this rank is its host's first, which examines the others."""

    host: int
    num_hosts: int
    is_first_of_host: bool


def place(env: Mapping[str, str] = os.environ) -> Place | None:
    """Returns this rank's place according to the launcher; None without a launcher. Raises: UserError."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= env.keys():
        return None
    try:
        rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
        local_size = max(int(env.get("LOCAL_WORLD_SIZE", "1")), 1)
        local_rank = int(env.get("LOCAL_RANK", str(rank % local_size)))
        host = int(env.get("GROUP_RANK", str(rank // local_size)))
        num_hosts = int(env.get("GROUP_WORLD_SIZE", str(size // local_size)))
        int(env["MASTER_PORT"])
    except ValueError as error:
        raise UserError(f"the launcher's variables RANK, WORLD_SIZE, MASTER_PORT are wrong: {error}") from None
    return Place(host, num_hosts, local_rank == 0)


@contextlib.contextmanager
def open_survey(where: Place) -> Iterator[SurveyHost]:
    """Opens this host's listener and the connection to the store. Raises: AgspeedError if either is impossible."""
    store = _open_store(where)
    with Listener(net_peers.this_host(), net_peers.job_key()) as listener:
        yield SurveyHost(where, store, listener)


class SurveyHost:
    """This host's part in the survey. The first rank of host 0 calls `survey`, `checks` and `end`; other hosts call
    `follow`."""

    def __init__(self, where: Place, store: Any, listener: Listener) -> None:
        self._where = where
        self._store = store
        self._listener = listener
        self._wrong: dict[str, list[Check]] = {}

    def survey(self) -> Survey:
        """Returns all paths between all hosts that have come."""
        self._publish()
        records = self._gather("host", range(self._where.num_hosts), _COME_S)
        self._set("hosts", sorted(records))
        hosts = self._hosts(records)
        mine = self._look(hosts)
        took = LOOK_S + _ROUND_S * len(hosts) + _LATE_S
        seen = {0: [path.to_json() for path in mine], **self._gather("paths", sorted(set(records) - {0}), took)}
        with _understanding():
            paths = [Path.from_json(row) for rows in seen.values() for row in rows[:_MOST_ROWS]]
        ends = {(host.name, rail.name) for host in hosts.values() for rail in host.rails}
        paths = [p for p in paths if {(p.source, p.rail), (p.destination, p.remote_rail)} <= ends]
        survey = Survey(list(hosts.values()), paths, _START_ALL)
        for missing in sorted(set(range(self._where.num_hosts)) - set(records)):
            survey.silent[f"node {missing}"] = f"has not come within {_COME_S:g} s of this one"
        for index in sorted(set(records) - set(seen)):
            survey.silent[hosts[index].name] = (
                "has not reported its results: it ended, or the store is out of its reach"
            )
        return survey

    def checks(self) -> Iterator[Check]:
        """Yields the problems that the other hosts' own checks found. A problem of several hosts appears once."""
        hosts: dict[Check, list[str]] = {}
        for name, found in self._wrong.items():
            for check in found:
                hosts.setdefault(check, []).append(name)
        for check, names in hosts.items():
            yield check._replace(detail=f"{', '.join(names)}: {check.detail}")

    def end(self, code: int) -> int:
        """Publishes the exit code and leaves the other hosts time to read it. Flushes standard output first, because
        torchrun ends this process when another one of the job has ended with 1."""
        sys.stdout.flush()
        self._set("verdict", code)
        self._gather("done", range(1, self._where.num_hosts), 1.0)
        return code

    def follow(self) -> int:
        """Examines the other hosts and waits for the verdict. Returns: the exit code."""
        self._publish()
        with _understanding():
            found = self._get("hosts", _COME_S + _FIRST_S) or []
            present = sorted({count(index, self._where.num_hosts - 1) for index in found[: self._where.num_hosts]})
        if self._where.host not in present:
            raise AgspeedError("the first host did not wait for this one, or has ended; read its output")
        hosts = self._hosts(self._gather("host", present, _LATE_S))
        self._set(f"paths/{self._where.host}", [path.to_json() for path in self._look(hosts)])
        verdict = self._get("verdict", LOOK_S + _ROUND_S * len(hosts) + _FIRST_S)
        if verdict is None:
            raise AgspeedError("the first host did not report the result; read its output")
        self._set(f"done/{self._where.host}", True)
        with _understanding():
            return count(verdict, _MOST_CODE)

    def _publish(self) -> None:
        wrong = [check for run in net_checks.NET_CHECKS for check in run() if check.status != "ok"]
        self._set(f"host/{self._where.host}", {"record": self._listener.record.to_json(), "wrong": wrong})

    def _hosts(self, found: Mapping[int, Any]) -> dict[int, HostRecord]:
        """Returns {index: host record}, with unique names."""
        with _understanding():
            records = {index: HostRecord.from_json(row["record"]) for index, row in sorted(found.items())}
            wrong = {index: list(map(_check, found[index]["wrong"][:_MOST_ROWS])) for index in records}
        names = [record.name for record in records.values()]
        for index, record in records.items():
            if names.count(record.name) > 1:
                records[index] = HostRecord(f"{record.name}#{index}", record.rails, record.left_out)
            if index != self._where.host:
                self._wrong[records[index].name] = wrong[index]
        return records

    def _look(self, hosts: Mapping[int, HostRecord]) -> list[Path]:
        own = hosts[self._where.host]
        routes = {index: routes_to(own, other) for index, other in hosts.items() if index != self._where.host}
        everything = [route for each in routes.values() for route in each]
        deadline = time.monotonic() + LOOK_S
        prober = Prober(own.name, net_peers.job_key(), deadline)
        paths = [path for path, _ in look_at(everything, prober, deadline, and_back=False)]
        self._set(f"looked/{self._where.host}", True)
        self._gather("looked", list(hosts), LOOK_S)
        began, order = time.monotonic(), sorted(hosts)
        for turn in range(1, len(order)):
            peer = order[(order.index(self._where.host) + turn) % len(order)]
            time.sleep(max(began + (turn - 1) * _ROUND_S - time.monotonic(), 0))
            of_peer = [path for path in paths if path.destination == hosts[peer].name]
            late = Prober(own.name, net_peers.job_key(), time.monotonic() + _LATE_S)
            for path, rate in zip(of_peer, measure_to(of_peer, routes[peer], late, sends=True), strict=True):
                path.bits_per_second = rate
        return paths

    def _set(self, name: str, value: Any) -> None:
        _talking(lambda: self._store.set(f"doctor/{name}", json.dumps(value)))

    def _get(self, name: str, seconds: float) -> Any:
        """Returns an entry of the store; None if it has not been set in time."""
        return self._gather_keys({0: name}, seconds).get(0)

    def _gather(self, name: str, indices: Any, seconds: float) -> dict[int, Any]:
        """Returns {index: entry} for the entries that have been set in time."""
        return self._gather_keys({index: f"{name}/{index}" for index in indices}, seconds)

    def _gather_keys(self, names: Mapping[int, str], seconds: float) -> dict[int, Any]:
        found: dict[int, Any] = {}
        until = time.monotonic() + seconds
        while len(found) < len(names):
            for index, name in names.items():
                key = f"doctor/{name}"
                if index not in found and _talking(functools.partial(self._store.check, [key])):
                    found[index] = _parsed(_talking(functools.partial(self._store.get, key)))
            if time.monotonic() >= until:
                break
            time.sleep(_POLL_S)
        return found


def _open_store(where: Place) -> Any:
    """Opens torchrun's store, or one that rank 0 serves. Raises: AgspeedError."""
    from torch import distributed

    from agspeed.torch_compat import job_store

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_server = os.environ["RANK"] == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    torch_distributed: Any = distributed
    options: Any = {"timeout": datetime.timedelta(seconds=_STORE_S), "wait_for_workers": False}
    try:
        if is_server:
            return job_store.serve(address, port, **options)
        return torch_distributed.TCPStore(address, port, **options)
    except (OSError, RuntimeError) as error:
        raise AgspeedError(
            f"host {where.host}: the store at {address}:{port} (MASTER_ADDR, MASTER_PORT) does not answer: "
            f"{str(error).splitlines()[0]}; let TCP pass there, and start all hosts within a minute"
        ) from None


def _parsed(message: bytes) -> Any:
    with _understanding():
        if len(message) > _MOST_BYTES:
            raise ValueError(f"{len(message)} bytes")
        return bounded_json.loads(message)


def _check(row: Any) -> Check:
    """Returns the check in a row of another host. Raises: ValueError if it is not a check."""
    if not isinstance(row, list) or len(row) != len(Check._fields) or not all(isinstance(text, str) for text in row):
        raise ValueError("no check")
    return Check(*(plain(text, _MOST_LETTERS) for text in row))


@contextlib.contextmanager
def _understanding() -> Iterator[None]:
    """For code that reads other hosts' entries. Raises: AgspeedError if they do not have this version's format."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise AgspeedError(
            f"a host wrote an entry to the store that this version does not understand ({error}): install the same "
            "version of agspeed on all hosts"
        ) from None


def _talking(call: Callable[[], Any]) -> Any:
    """Calls the store. Raises: AgspeedError if the store has gone."""
    try:
        return call()
    except RuntimeError as error:
        raise AgspeedError(
            f"the store has gone, as has the rank that serves it: {str(error).splitlines()[0]}"
        ) from None
