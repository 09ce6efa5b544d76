# SPDX-License-Identifier: Apache-2.0
"""Runs the user's script that prints the hosts of an elastic job: again and again, a second after its last end.

The script runs without a shell and in a session of its own. Its time and its output have bounds. If a run fails, the
last good list holds.

Threading: one thread owns a `Discovery`. If that thread ends, the kernel ends the script.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Collection
from pathlib import Path
from typing import IO

from agspeed.errors import UserError
from agspeed.launch.hosts import Host, found_by_script
from agspeed.launch.ranks import ending
from agspeed.parent_death import end_with

__all__ = ["Discovery"]

_INTERVAL_S = 1.0
_LONGEST_RUN_S = 10.0
_MOST_BYTES, _MOST_ERROR_BYTES = 1 << 20, 1 << 16
_MOST_SHOWN = 300
_EXIT_POLL_S = 0.02
_REMEDIES = {errno.EACCES: "make it executable with chmod +x", errno.ENOEXEC: "begin it with a line such as #!/bin/sh"}


class Discovery:
    """The script, and what it has found.

    Attributes:
        hosts: the last good list; None before the first one.
        complaint: a sentence that says why the last run has failed; empty if it has not.
    """

    def __init__(self, script: Path, slots: int | None, longest_run_s: float = _LONGEST_RUN_S) -> None:
        """slots: of hosts for which the script prints no number; None if it has to."""
        self.hosts: tuple[Host, ...] | None = None
        self.complaint = ""
        self._script, self._slots, self._longest_run_s = script, slots, longest_run_s
        self._name = f"--host-discovery-script {script}"
        self._run: _Run | None = None
        self._next_run = 0.0

    @property
    def deadline(self) -> float:
        """When `note` has something to do at the latest (time.monotonic())."""
        return self._next_run if self._run is None else self._run.deadline

    def events(self) -> dict[int, int]:
        """The descriptors to wait for before `note`, with their events for select.poll()."""
        return {} if self._run is None else self._run.events()

    def note(self, ready: Collection[int], now: float) -> None:
        """Starts the script when it is time, and takes what it prints. Updates the attributes when it has ended."""
        try:
            if self._run is None and now >= self._next_run:
                self._run = self._start(now)
            output = None if self._run is None else self._run.output_of_end(ready, now)
            if output is None:
                return
            found = found_by_script(self._name, output, self._slots)
            if self.hosts and not found:
                raise UserError(f"{self._name} has printed no hosts; run it by hand, and correct it.")
            self.hosts, self.complaint = found, ""
        except UserError as error:
            self.complaint = str(error)
        self.close()
        self._next_run = time.monotonic() + _INTERVAL_S

    def close(self) -> None:
        """Ends the script, if it runs. Call it last."""
        if self._run is not None:
            self._run.close()
        self._run, self._next_run = None, math.inf

    def _start(self, now: float) -> _Run:
        launcher = os.getpid()
        try:
            process = subprocess.Popen(
                [str(self._script.absolute())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=lambda: end_with(launcher),
            )
        except OSError as error:
            remedy = _REMEDIES.get(error.errno or 0, "name a script that can be executed")
            raise UserError(f"{self._name} cannot be started: {error.strerror}; {remedy}.") from None
        return _Run(self._name, process, now, self._longest_run_s)


class _Run:
    """One run of the script. It owns the process."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], now: float, longest_s: float) -> None:
        assert process.stdout is not None and process.stderr is not None
        self._name, self._process = name, process
        self._longest_s, self._end = longest_s, now + longest_s
        self._open: dict[int, IO[bytes]] = {each.fileno(): each for each in (process.stdout, process.stderr)}
        self._source = process.stdout.fileno()
        self._output, self._errors = b"", b""
        for descriptor in self._open:
            os.set_blocking(descriptor, False)

    @property
    def deadline(self) -> float:
        return self._end if self._open else time.monotonic() + _EXIT_POLL_S

    def events(self) -> dict[int, int]:
        return dict.fromkeys(self._open, select.POLLIN)

    def output_of_end(self, ready: Collection[int], now: float) -> bytes | None:
        """Returns: what the script has printed, once it has ended; None before. Raises: UserError if it has failed."""
        for descriptor in set(self._open).intersection(ready):
            self._read(descriptor)
        status = None if self._open else self._process.poll()
        if status is None:
            if now >= self._end:
                raise UserError(f"{self._name} has not ended after {self._longest_s:g} s; make it quicker.")
            return None
        if status != 0:
            said = self._errors.decode("utf-8", "replace").strip().splitlines()
            why = f": {said[-1][:_MOST_SHOWN]!r}" if said else ""
            raise UserError(f"{self._name} ended {ending(status)}{why}; run it by hand, and correct it.")
        return self._output

    def close(self) -> None:
        if self._process.returncode is None:  # its number is still its own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:  # the caller has waited for an earlier descriptor of this number
            return
        if not data:
            del self._open[descriptor]
        elif descriptor != self._source:
            self._errors = (self._errors + data)[-_MOST_ERROR_BYTES:]
        elif len(self._output) + len(data) > _MOST_BYTES:
            raise UserError(f"{self._name} has printed more than {_MOST_BYTES} bytes; print one host per line.")
        else:
            self._output += data
