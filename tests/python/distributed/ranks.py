# SPDX-License-Identifier: Apache-2.0
"""Ranks for tests: long-lived processes, forked from one that has loaded torch. They run functions, each in a fresh
group."""

from __future__ import annotations

import datetime
import faulthandler
import importlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

_TIMEOUT_S = 60
_START_TIMEOUT_S = 300  # loading torch takes long on a busy machine
_LOADED_ONCE = ["torch", "torch.distributed", "tests.python.distributed.training"]


class Ranks:
    """`size` processes. Not thread-safe; close it or leave the with block to end them."""

    def __init__(
        self, size: int, prepare: Callable[[], None] | None = None, timeout_s: int = _TIMEOUT_S, **variables: str
    ) -> None:
        """Starts the ranks. Each one calls `prepare`, a module-level function, first. `variables` are added to its
        environment. An answer may take `timeout_s`, a collective half as long. Optimizers are not found, as in the
        test's own process.
        """
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_LOADED_ONCE)
        self.size, self._timeout_s = size, timeout_s
        self._connections: list[Connection] = []
        self._processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, size, theirs, prepare, variables, timeout_s), daemon=True
            )
            process.start()
            self._connections.append(ours)
            self._processes.append(process)
        for connection in self._connections:
            assert connection.poll(_START_TIMEOUT_S), f"a rank did not start within {_START_TIMEOUT_S} s"
            connection.recv()

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [process.pid for process in self._processes if process.pid is not None]

    def run(self, function: Any, folder: Path, backend: str = "agspeed", /, **arguments: Any) -> list[Any]:
        """Runs function(**arguments) on every rank of a new default group. Returns their results in rank order.

        Raises AssertionError with the traceback of the first rank that raised. If a rank does not answer in time, the
        error has the stacks of all ranks. All ranks are ended then, and later calls fail at once.
        """
        assert self._processes, "a rank did not answer an earlier call"
        store = folder / f"store-{os.urandom(4).hex()}"
        for connection in self._connections:
            connection.send((function.__module__, function.__qualname__, str(store), backend, arguments))
        answers = []
        for rank, connection in enumerate(self._connections):
            if not connection.poll(self._timeout_s):
                stacks = self._stacks(store)
                self._kill()
                late = f"rank {rank} of {self.size} did not answer within {self._timeout_s} s"
                raise AssertionError(f"{late}\n{stacks}")
            answers.append(connection.recv())
        for rank, (is_ok, result) in enumerate(answers):
            assert is_ok, f"rank {rank} of {self.size} raised:\n{result}"
        return [result for _, result in answers]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(5)
        self._kill()

    def _stacks(self, store: Path) -> str:
        """Returns the stacks of the ranks' threads, which each rank writes to a file at a signal."""
        for process in self._processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGUSR2)  # type: ignore[arg-type]
        time.sleep(1)
        files = [(rank, _stacks_file(str(store), rank)) for rank in range(self.size)]
        return "\n".join(f"rank {rank}:\n{file.read_text()}" for rank, file in files if file.exists())

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
        self._processes.clear()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _stacks_file(store: str, rank: int) -> Path:
    return Path(f"{store}.stacks-{rank}")


def _serve(
    rank: int,
    size: int,
    connection: Connection,
    prepare: Callable[[], None] | None,
    variables: dict[str, str],
    timeout_s: int,
) -> None:
    usual = {"AGSPEED_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "AGSPEED_TUNE_OPTIMIZER": "off"}
    os.environ |= {**usual, **variables}
    import torch
    from torch import distributed

    import agspeed  # noqa: F401  registers the backend

    if prepare:
        prepare()
    torch.set_num_threads(1)
    connection.send("ready")
    while True:
        try:
            module, name, store, backend, arguments = connection.recv()
        except EOFError:
            return
        stacks = _stacks_file(store, rank).open("w")
        faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)
        try:
            distributed.init_process_group(
                backend,
                init_method=f"file://{store}",
                rank=rank,
                world_size=size,
                timeout=datetime.timedelta(seconds=timeout_s / 2),
            )
            # Kept until the next call, because torch's Gloo aborts if one of its own callbacks drops the last
            # reference.
            alive = distributed.group.WORLD  # noqa: F841
            try:
                torch.manual_seed(1000 + rank)
                result = getattr(importlib.import_module(module), name)(**arguments)
            finally:
                distributed.destroy_process_group()
            connection.send((True, result))
        except Exception:
            connection.send((False, traceback.format_exc()))
