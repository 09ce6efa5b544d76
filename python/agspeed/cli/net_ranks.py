# SPDX-License-Identifier: Apache-2.0
"""`agspeed doctor --net` under torchrun: one rank of every host looks at all other hosts, rank 0 tells.

Hosts find each other by torch's store at MASTER_ADDR:MASTER_PORT, as the ranks of a job do:

    host i sets    doctor/host/i     its record, and what its own checks found wrong
    host 0 sets    doctor/hosts      who has come in time: these look at each other, all at once
    host i sets    doctor/looked/i   when it has; then rates are measured in rounds, host i to host i + round
    host i sets    doctor/paths/i    what it saw
    host 0 sets    doctor/verdict    the exit code of all

Every wait has an end; whoever is missing then is named. What hosts write is shown, and hosts are looked at where they
say they are; it carries no proof of the job key, so that hosts of different keys are found (`netprobe/keys.py`).
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

__all__ = ["Meeting", "Place", "meet", "place"]

_STORE_S = 10.0
_COME_S = 10.0  # from the first host's coming
_POLL_S = 0.02
_ROUND_S = STREAM_S + 0.4
_LATE_S = 5.0  # by which hosts of one job may be apart
_MOST_BYTES = 1 << 22  # of what a host writes
_MOST_ROWS = 1 << 12
_MOST_LETTERS = 2000
_MOST_CODE = 255
_FIRST_S = 60.0  # the first host looks at itself as well, and may be busy
_START_ALL = (
    "start this command on all hosts within a minute, each with its own --node-rank, and see what it printed there"
)


class Place(NamedTuple):
    """Which host of how many this one is; one rank of each looks."""

    host: int
    num_hosts: int
    is_first_of_host: bool


def place(env: Mapping[str, str] = os.environ) -> Place | None:
    """What the launcher says; None where there is none."""
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
def meet(where: Place) -> Iterator[Meeting]:
    """Opens this host's listener and the way to the store. Raises: AgspeedError where either is not possible."""
    store = _open_store(where)
    with Listener(net_peers.this_host(), net_peers.job_key()) as listener:
        yield Meeting(where, store, listener)


class Meeting:
    """This host's part. The first rank of host 0 calls `survey`, `checks` and `end`, all others `follow`."""

    def __init__(self, where: Place, store: Any, listener: Listener) -> None:
        self._where = where
        self._store = store
        self._listener = listener
        self._wrong: dict[str, list[Check]] = {}

    def survey(self) -> Survey:
        """All paths between all hosts that have come."""
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
            survey.silent[hosts[index].name] = "has not said what it saw: it ended, or the store is out of its reach"
        return survey

    def checks(self) -> Iterator[Check]:
        """What the other hosts' own checks found wrong, once where several found the same."""
        hosts: dict[Check, list[str]] = {}
        for name, found in self._wrong.items():
            for check in found:
                hosts.setdefault(check, []).append(name)
        for check, names in hosts.items():
            yield check._replace(detail=f"{', '.join(names)}: {check.detail}")

    def end(self, code: int) -> int:
        """Tells all others the exit code and leaves them the time to read it. What was printed is out before: torchrun
        ends this process when another one of the job has ended with 1."""
        sys.stdout.flush()
        self._set("verdict", code)
        self._gather("done", range(1, self._where.num_hosts), 1.0)
        return code

    def follow(self) -> int:
        """Looks at the others and waits for the verdict. Returns: the exit code."""
        self._publish()
        with _understanding():
            found = self._get("hosts", _COME_S + _FIRST_S) or []
            present = sorted({count(index, self._where.num_hosts - 1) for index in found[: self._where.num_hosts]})
        if self._where.host not in present:
            raise AgspeedError("the first host did not wait for this one, or has ended; see what it printed")
        hosts = self._hosts(self._gather("host", present, _LATE_S))
        self._set(f"paths/{self._where.host}", [path.to_json() for path in self._look(hosts)])
        verdict = self._get("verdict", LOOK_S + _ROUND_S * len(hosts) + _FIRST_S)
        if verdict is None:
            raise AgspeedError("the first host said nothing of the result; see what it printed")
        self._set(f"done/{self._where.host}", True)
        with _understanding():
            return count(verdict, _MOST_CODE)

    def _publish(self) -> None:
        wrong = [check for run in net_checks.NET_CHECKS for check in run() if check.status != "ok"]
        self._set(f"host/{self._where.host}", {"record": self._listener.record.to_json(), "wrong": wrong})

    def _hosts(self, found: Mapping[int, Any]) -> dict[int, HostRecord]:
        """By index, each with a name of its own."""
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
        """None where nobody has set it in that time."""
        return self._gather_keys({0: name}, seconds).get(0)

    def _gather(self, name: str, indices: Any, seconds: float) -> dict[int, Any]:
        """What hosts have set in that time."""
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
    """Torchrun's, or one that rank 0 serves."""
    from torch import distributed

    from agspeed.torch_compat import job_store

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_server = os.environ["RANK"] == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    options: Any = {"timeout": datetime.timedelta(seconds=_STORE_S), "wait_for_workers": False}
    try:
        if is_server:
            return job_store.serve(address, port, **options)
        return distributed.TCPStore(address, port, **options)  # type: ignore[attr-defined]
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
    """Raises: ValueError for anything that is none."""
    if not isinstance(row, list) or len(row) != len(Check._fields) or not all(isinstance(text, str) for text in row):
        raise ValueError("no check")
    return Check(*(plain(text, _MOST_LETTERS) for text in row))


@contextlib.contextmanager
def _understanding() -> Iterator[None]:
    """Reading what other hosts wrote. Raises: AgspeedError where it is nothing that this version writes."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise AgspeedError(
            f"a host wrote to the store what this version does not understand ({error}): install the same version of "
            "agspeed on all hosts"
        ) from None


def _talking(call: Callable[[], Any]) -> Any:
    """Calls the store. Raises: AgspeedError where it has gone."""
    try:
        return call()
    except RuntimeError as error:
        raise AgspeedError(
            f"the store has gone, as has the rank that serves it: {str(error).splitlines()[0]}"
        ) from None
