# SPDX-License-Identifier: Apache-2.0
"""A side's ranks: processes on the hosts that live for the whole case, so that no start-up is measured.

The worker talks to them through a socket in the file system, because network namespaces share the file system. When
this process ends for any reason, the ranks read end of file and exit. The bed kills ranks that cannot.
Thread-safety: one thread at a time.
"""

import contextlib
import socket
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from agspeed import netbed
from benchmarks.comm.blocks import Block
from benchmarks.comm.sides import Side

_START_LIMIT_S = 240.0
_CALL_LIMIT_S = 900.0  # longer than tuning takes in any case


class Team:
    """The code that opened the bed owns it. Calls raise RuntimeError with the error of the first rank that failed."""

    def __init__(self, bed: netbed.Netbed, side: Side, environment: Mapping[str, str], ranks_per_host: int = 1) -> None:
        """Starts the processes and returns at once, so that several teams load torch at the same time. Call
        `wait_until_ready` next."""
        self.side = side
        folder = bed.scratch / side.name
        folder.mkdir()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(folder / "socket"))
        size = len(bed.hosts) * ranks_per_host
        self._socket.listen(size)
        self._connections: dict[int, Connection] = {}
        rails = ",".join(rail.name for rail in bed.hosts[0].rails)
        command = [sys.executable, "-m", "benchmarks.comm.rank"]
        command += [str(folder / "socket"), side.backend, str(folder / "store")]
        variables = {**environment, **side.variables(rails), "WORLD_SIZE": str(size)}
        self._jobs = [
            bed.start(command, env={**variables, "RANK": str(rank)}, hosts=[rank // ranks_per_host])
            for rank in range(size)
        ]

    @property
    def size(self) -> int:
        return len(self._jobs)

    def wait_until_ready(self) -> None:
        """Waits until all ranks have connected and finished a first operation."""
        deadline = time.monotonic() + _START_LIMIT_S
        self._socket.settimeout(0.2)
        while len(self._connections) < self.size:
            if (words := self._last_words()) or time.monotonic() > deadline:
                raise RuntimeError(f"{self.side.name}: {len(self._connections)} of {self.size} ranks came up{words}")
            with contextlib.suppress(TimeoutError):
                accepted, _ = self._socket.accept()
                accepted.setblocking(True)
                connection = Connection(accepted.detach())
                self._connections[connection.recv()] = connection
        self.ask("programs.warm_up")

    def ask(self, name: str, **arguments: Any) -> list[Any]:
        """Runs "module.function" of this folder, or "folder.module.function", on all ranks. Returns their results."""
        self.begin(name, **arguments)
        return self.answers()

    def begin(self, name: str, **arguments: Any) -> None:
        """Like `ask`, but does not wait. `answers` waits."""
        for connection in self._connections.values():
            connection.send((name, arguments))

    def answers(self) -> list[Any]:
        found = {}
        for rank, connection in self._connections.items():
            try:
                if not connection.poll(_CALL_LIMIT_S):
                    raise RuntimeError(f"{self.side.name}: rank {rank} did not answer within {_CALL_LIMIT_S:g} s")
                is_ok, found[rank] = connection.recv()
            except (EOFError, ConnectionError):
                is_ok, found[rank] = False, f"ended{self._last_words(wait_s=1.0)}"
            if not is_ok:
                raise RuntimeError(f"{self.side.name}: rank {rank}: {found[rank].strip()}")
        return [found[rank] for rank in sorted(found)]

    def block(self, name: str, **arguments: Any) -> Block:
        """Like `ask`, for a function that returns the same as `programs.timed`."""
        return Block.of_ranks(self.ask(name, **arguments))

    def close(self) -> None:
        """Closes the connections, which ends the ranks, and waits for them."""
        self._socket.close()
        for connection in self._connections.values():
            connection.close()
        for job in self._jobs:
            job.end()

    def _last_words(self, wait_s: float = 0.0) -> str:
        """How the first rank that has ended failed; "" if all run."""
        for task in (task for job in self._jobs for task in job.tasks.values()):
            if outcome := task.wait(wait_s):
                return f": {outcome.failure()}"
        return ""
