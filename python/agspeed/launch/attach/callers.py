# SPDX-License-Identifier: Apache-2.0
"""An agent's side of new launchers: it takes one if its own launcher is lost, and refuses all others with a sentence.

A caller sends the "job" that a launcher sends to each agent. Its mode says what it wants:

    new       a job with an id that no other job has; refused, because the agent's own job has it
    attach    to take the job over
    replace   to run members here after the connection was lost: the agent ends its own, which count as lost

The agent's launcher may have a second connection to this host, which runs members beside the agent's. While the agent
has a launcher, other callers wait for a moment: the launcher may have been killed just now.

Threading: the agent's thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

from agspeed.launch import frames
from agspeed.launch.attach import point
from agspeed.version import __version__

__all__ = ["Callers", "Offer"]

_PATIENCE_S = 2.0
_MOST = 8


@dataclass(frozen=True)
class Offer:
    """A launcher that may take the job over, or that wants this agent to end."""

    link: frames.Link
    job: Mapping[str, Any]


@dataclass
class _Caller:
    link: frames.Link
    since: float
    job: Mapping[str, Any] | None = None


class Callers:
    """The processes at the agent's socket; a context manager, which closes all connections that it has not given away.

    Attributes:
        job: the agent's job, as its newest launcher has sent it.
        has_launcher: whether that launcher is still there.
    """

    def __init__(self, job: Mapping[str, Any]) -> None:
        """Raises: OSError if the socket cannot be opened."""
        self.job, self.has_launcher = job, True
        self._socket = point.listening(job["id"], job["host"])
        self._callers: list[_Caller] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        for each in self._callers:
            each.link.close()

    @property
    def deadline(self) -> float:
        """When `note` has something to do at the latest (time.monotonic())."""
        return min((each.since + _PATIENCE_S for each in self._callers), default=math.inf)

    def sources(self) -> list[int]:
        """The descriptors to read from."""
        silent = [each.link for each in self._callers if each.job is None]
        return [self._socket.fileno(), *(source for link in silent for source in link.events())]

    def note(self, ready: Collection[int]) -> Offer | None:
        """Takes new callers and what they send. Returns: one that the agent has to heed, if there is any."""
        now = time.monotonic()
        if self._socket.fileno() in ready:
            self._accept(now)
        for caller in list(self._callers):
            try:
                received = caller.link.receive() if caller.job is None else []
            except (frames.FrameError, frames.ClosedError):
                self._drop(caller)
                continue
            if received and received[0].kind == "job" and isinstance(received[0].value, dict):
                caller.job = received[0].value
            if caller.job is not None and self._is_heeded(caller.job):
                self._callers.remove(caller)
                return Offer(caller.link, caller.job)
            if caller.job is not None and caller.job.get("launcher") == self.job["launcher"]:
                caller.link.send("beside", 0)
                self._drop(caller)
            elif now >= caller.since + _PATIENCE_S or (caller.job is not None and self._mistake(caller.job)):
                self._refuse(caller)
        return None

    def _accept(self, now: float) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return
        with connection:
            if point.is_of_this_user(connection) and len(self._callers) < _MOST:
                self._callers.append(_Caller(point.link(connection, frames.MOST_LAUNCHER_BYTES), now))

    def _is_heeded(self, job: Mapping[str, Any]) -> bool:
        match job.get("mode"):
            case "replace":
                return job.get("agent") == self.job["agent"] or not self.has_launcher
            case "attach":
                return not self.has_launcher and not self._mistake(job)
        return False

    def _mistake(self, job: Mapping[str, Any]) -> str:
        """Says why this caller can never be taken; empty if it may have to wait only."""
        name = f"job {self.job['id']}"
        if job.get("mode") == "new":
            return (
                f"{name} runs there already; name another --job-id, or, if its launcher was killed, attach with "
                f"--attach {self.job['id']}."
            )
        if job.get("version") != __version__:
            return f"{name} was started by agspeed {__version__}, and this is {job.get('version')}; use the same one."
        if job.get("mode") == "attach" and job.get("command") != self.job["command"]:
            return f"{name} runs another command: {' '.join(self.job['command'])}; attach with that command."
        return ""

    def _refuse(self, caller: _Caller) -> None:
        if caller.job is not None:
            caller.link.send("refused", self._mistake(caller.job) or self._busy())
        self._drop(caller)

    def _busy(self) -> str:
        return (
            f"job {self.job['id']} has a launcher already, {self.job['launcher']['name']}; a job has one launcher. End "
            "that one, or wait until its connection is lost."
        )

    def _drop(self, caller: _Caller) -> None:
        self._callers.remove(caller)
        caller.link.close()
