# SPDX-License-Identifier: Apache-2.0
"""The ranks of a scenario as its runner sees them: forked onto the hosts of a bed, with their output read by line.

Ranks are forked from the runner, which has loaded torch, so a fresh group starts quickly. Forking requires that the
runner has one thread only. It reads the ranks' output in `follow` and `wait_for`; every pause of a scenario goes
through these. Ownership: the bed ends the processes; `close` ends them earlier.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import selectors
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agspeed import netbed
from tests.fault.scenarios import rank

__all__ = ["RANKS", "Counters", "Failure", "Group", "Member", "Operation", "Options"]

RANKS = 4
_FIRST_PORT = 29500
_NUM_PORTS = 1000
_START_LIMIT_S = 120.0
_WARM_UP_OPERATIONS = 6  # for each size
_KEPT_LOG_LINES = 100


@dataclass(frozen=True)
class Options:
    """Properties of a scenario's bed and ranks. Scenarios with equal options share a bed and a group."""

    rails: int = 2
    rate: str = "200mbit"
    peer_timeout_s: float = 10.0
    pause_s: float = 0.0  # replaces computation between two operations


class Operation(NamedTuple):
    case: int
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def num_bytes(self) -> int:
        return 4 * rank.SIZES[self.case]


@dataclass(frozen=True)
class Counters:
    """The counters that a rank reports. See `rank._counters`."""

    at: float
    sent: list[int]
    failovers: int
    stalls: int
    resent: int
    refused: int
    retransmitted: int
    descriptors: int
    resident_kib: int
    cpu_s: float


@dataclass(frozen=True)
class Failure:
    at: float
    error: str
    message: str


@dataclass
class Member:
    """The output of one rank, parsed."""

    digest: str = ""
    operations: list[Operation] = field(default_factory=list)
    wrong: int = 0
    counters: Counters | None = None
    failure: Failure | None = None
    log: collections.deque[str] = field(default_factory=lambda: collections.deque(maxlen=_KEPT_LOG_LINES))
    num_log_lines: int = 0
    unfinished: bytes = b""  # beginning of a line

    def hear(self, line: bytes) -> None:
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, dict):
                return self._take(said)
        self.log.append(line.decode(errors="replace"))
        self.num_log_lines += 1
        return None

    def _take(self, said: dict[str, Any]) -> None:
        if "operations" in said:
            self.operations += (Operation(*operation) for operation in said["operations"])
            self.wrong = said["wrong"]
            self.counters = Counters(**said["counters"])
        elif "failed" in said:
            self.failure = Failure(said["failed"], said["error"], said["message"])
        else:
            self.digest = said["ready"]


class Group:
    """Ranks 0 to 3 on the first hosts of the bed. They have run each operation a few times without a fault."""

    _serial = 0

    def __init__(self, bed: netbed.Netbed, options: Options) -> None:
        Group._serial += 1
        self.members = [Member() for _ in range(RANKS)]
        self._selector = selectors.DefaultSelector()
        pipes = [os.pipe() for _ in range(RANKS)]
        for member, (output, _) in zip(self.members, pipes, strict=True):
            os.set_blocking(output, False)
            self._selector.register(output, selectors.EVENT_READ, member)
        self.port = _FIRST_PORT + Group._serial % _NUM_PORTS
        environment = {
            "WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": bed.hosts[0].rails[0].ipv4,
            "MASTER_PORT": str(self.port),
            "AGSPEED_DEBUG": "info",
            "AGSPEED_PEER_TIMEOUT_MS": str(round(1000 * options.peer_timeout_s)),
        }
        inputs = [entry for _, entry in pipes]
        self.job = bed.start_call(rank.run, inputs, environment, options.pause_s, hosts=range(RANKS))
        for entry in inputs:
            os.close(entry)
        self.wait_for(lambda: self._is_warm() or not self.is_whole, _START_LIMIT_S)
        if not (self._is_warm() and self.is_whole):
            raise netbed.NetbedError(f"the ranks did not start: {self.failures()}\n{self.story()}")
        self.typical_s = [
            statistics.median(operation.seconds for operation in self.operations() if operation.case == case)
            for case in range(len(rank.SIZES))
        ]

    def close(self) -> None:
        self.job.end()
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()

    @property
    def is_whole(self) -> bool:
        """True if no rank has failed or ended."""
        return not self.failures() and len(self._selector.get_map()) == RANKS

    def failures(self) -> list[Failure]:
        return [member.failure for member in self.members if member.failure]

    def operations(self) -> Iterator[Operation]:
        """The operations reported since the last `forget`."""
        return (operation for member in self.members for operation in member.operations)

    def forget(self) -> None:
        """Drops operations and logs; keeps the counters."""
        for member in self.members:
            member.operations.clear()
            member.log.clear()

    def follow(self, seconds: float) -> None:
        """Reads the ranks' output for that long."""
        self.wait_for(lambda: False, seconds)

    def wait_for(self, is_reached: Callable[[], bool], limit_s: float) -> bool:
        """Reads the ranks' output until the condition holds, for at most that long. Returns whether it holds."""
        deadline = time.monotonic() + limit_s
        while not is_reached():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._listen(left)
        return True

    def longest_excess_s(self, begin: float) -> float:
        """The largest delay of an operation that ended after `begin`: its time minus the typical time of its size."""
        return max(
            (
                operation.seconds - self.typical_s[operation.case]
                for operation in self.operations()
                if operation.end > begin
            ),
            default=0.0,
        )

    def bytes_per_s(self, begin: float) -> float:
        """Reduced bytes per second, averaged over the ranks, for operations that began after `begin`."""
        speeds = []
        for member in self.members:
            later = [operation for operation in member.operations if operation.begin > begin]
            total = sum(operation.num_bytes for operation in later)
            speeds.append(total / (later[-1].end - later[0].begin) if later else 0.0)
        return statistics.fmean(speeds)

    def story(self) -> str:
        """The last lines of all ranks' logs, for a person who searches for the error."""
        return "\n".join(
            f"[{index}] {line}" for index, member in enumerate(self.members) for line in list(member.log)[-30:]
        )

    def _is_warm(self) -> bool:
        return all(len(member.operations) >= len(rank.SIZES) * _WARM_UP_OPERATIONS for member in self.members)

    def _listen(self, seconds: float) -> None:
        if not self._selector.get_map():  # without this, select() would return at once
            time.sleep(min(seconds, 0.05))
            return
        for key, _ in self._selector.select(min(seconds, 0.05)):
            member: Member = key.data
            data = os.read(key.fd, 1 << 16)
            if not data:
                self._selector.unregister(key.fd)
                os.close(key.fd)
                continue
            *lines, member.unfinished = (member.unfinished + data).split(b"\n")
            for line in lines:
                member.hear(line)
