# SPDX-License-Identifier: Apache-2.0
"""An agent's side of its ranks. They run under a keeper, which ends them with the agent (`keeper.py`).

Threading: one thread makes, follows and leaves a `Ranks`. If that thread ends, the kernel acts as if the agent had
died.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Self

from agspeed.errors import AgspeedError, UserError
from agspeed.launch import keeper

__all__ = ["INHERITED", "Ranks", "ending"]

INHERITED = (1, 2)
"""The output descriptors of a rank that uses this process's stdout and stderr."""


class Ranks:
    """The ranks of a job on this host; a context manager.

    Leaving it ends the ranks that still run, and waits for their end.

    Attributes:
        first_failed: the first rank that ended with another status than 0, and that status (minus the signal).
        is_over: whether all ranks have ended. If one failed, all processes that ranks had started have ended, too.
    """

    def __init__(
        self,
        command: Sequence[str],
        variables: Sequence[Mapping[str, str]],
        outputs: Sequence[tuple[int, int]],
        inherited: Sequence[int] = (),
    ) -> None:
        """Starts one rank for each entry of `variables`.

        Args:
            variables: by rank, environment variables in addition to this process's.
            outputs: by rank, the descriptors that become its stdout and stderr. The caller still owns them.
            inherited: descriptors that ranks inherit under the same numbers.
        """
        self.first_failed: tuple[int, int] | None = None
        self.is_over = False
        self._command = command
        self._running: dict[int, int] = {}  # process ids by rank
        self._has_started = self._must_end = False
        self._unread = b""
        self._events, write = os.pipe()
        passed = {write, *inherited, *(each for pair in outputs for each in pair if each > 2)}
        ranks = [{"variables": dict(each), "outputs": pair} for each, pair in zip(variables, outputs, strict=True)]
        try:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid()), str(write)],
                stdin=subprocess.PIPE,
                pass_fds=sorted(passed),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._events)
            raise
        finally:
            os.close(write)
        job = {"command": list(command), "ranks": ranks, "inherited": list(inherited)}
        assert self._keeper.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._keeper.stdin as stream:  # `note_events` reports a dead keeper
            stream.write(json.dumps(job).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end()
            while not self.is_over:
                self.note_events()
        finally:
            os.close(self._events)

    def fileno(self) -> int:
        """A descriptor that is readable when there is an event for `note_events`."""
        return self._events

    def note_events(self) -> None:
        """Reads events, waiting for one if there is none, and updates the attributes.

        Raises: UserError if the command cannot be started; AgspeedError if the keeper was killed.
        """
        data = os.read(self._events, 1 << 16)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._note(json.loads(line))
        if not data:
            self._note_end_of_keeper()

    def end(self) -> None:
        """Ends the ranks and all processes that they have started: SIGTERM, then SIGKILL after some seconds.

        Does not wait for the end.
        """
        self._must_end = True
        if self._has_started and not self.is_over:  # a keeper that has just begun does not handle SIGTERM yet
            self._keeper.terminate()

    def _note(self, event: dict[str, Any]) -> None:
        if "error" in event:
            raise UserError(f"cannot start {self._command[0]}: {event['error']}; check its name and path.")
        if "started" in event:
            self._running = dict(enumerate(event["started"]))
            self._has_started = True
            if self._must_end:
                self.end()
            return
        rank, status = event["ended"], event["status"]
        self._running.pop(rank, None)
        if status != 0 and self.first_failed is None:
            self.first_failed = rank, status

    def _note_end_of_keeper(self) -> None:
        status = self._keeper.wait()
        self.is_over = True
        if status == 0:
            return
        # The kernel has killed the ranks with the keeper. Processes that they started are still in their sessions.
        sessions = self._running.values()
        keeper.kill((pid for pid, each in keeper.processes().items() if each.session in sessions), signal.SIGKILL)
        raise AgspeedError(
            f"the process that keeps the ranks ended {ending(status)}, and the ranks with it; start the job again, and "
            "with fewer ranks if memory ran out."
        )


def ending(status: int) -> str:
    """Describes how a process ended, for the end of a sentence. status: as subprocess returns it."""
    if status >= 0:
        return f"with status {status}"
    names = {each.value: each.name for each in signal.Signals}
    return f"by signal {names.get(-status, -status)}"
