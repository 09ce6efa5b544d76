# SPDX-License-Identifier: Apache-2.0
"""The launcher's part of an installation: all hosts install the wheel, or none keeps it (`installer.py`).

Threading: the caller's thread.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agspeed.errors import AgspeedError
from agspeed.launch import frames
from agspeed.launch.connection import Connection
from agspeed.launch.hosts import Host
from agspeed.launch.install import carried_code
from agspeed.launch.output import Output
from agspeed.launch.starters import Starter

__all__ = ["Package", "Result", "install"]

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Package:
    """What to install: a wheel, and by host the version of torch that comes with it."""

    name: str
    content: bytes
    torches: Mapping[str, str]


@dataclass(frozen=True)
class Result:
    """The result of an installation.

    Attributes:
        problems: why hosts do not have the wheel; empty if all have it.
        changed: the hosts that have it now, and did not have it before.
    """

    problems: Sequence[str]
    changed: Sequence[str]


def install(hosts: Sequence[Host], remote: Starter, package: Package, start_timeout_s: float) -> Result:
    """Installs a package on all hosts. If one host fails, all others take their change back."""
    with Output(1, None, False) as output:
        found: list[_Installing] = []
        try:
            for host in hosts:
                found.append(_Installing(host, remote, output, package))
            _advance(found, output, start_timeout_s)
        finally:
            for each in found:
                each.end()
            while not all(each.is_over for each in found):
                _turn(found, output)
            for each in found:
                each.close()
    problems = [each.problem for each in found if each.problem]
    problems += [
        f"{each.name} did not confirm that it has taken its change back; look for agspeed there with pip list."
        for each in found
        if each.is_lost and not each.problem
    ]
    return Result(problems, [each.host.name for each in found if each.has_changed])


def _advance(found: Sequence[_Installing], output: Output, start_timeout_s: float) -> None:
    """Takes all hosts from one state to the next one. Returns early if one of them has a problem."""
    until = time.monotonic() + start_timeout_s
    while not all(each.state == "staged" for each in found):
        _turn(found, output, until if any(each.is_connecting for each in found) else math.inf)
        for each in found:
            if each.is_connecting and time.monotonic() >= until:
                each.give_up(start_timeout_s)
        if all(each.problem or each.state == "staged" for each in found) and any(each.problem for each in found):
            return  # all reasons are known
    for each in found:
        each.tell("install")
    while not all(each.state == "installed" for each in found):
        _turn(found, output)
        if any(each.problem for each in found):
            return
    for each in found:
        each.tell("keep")
    while not all(each.is_over for each in found):
        _turn(found, output)


def _turn(found: Sequence[_Installing], output: Output, until: float = math.inf) -> None:
    events = {descriptor: event for each in found for descriptor, event in each.events().items()}
    deadline = min([until, *(each.deadline for each in found if not each.is_over)])
    ready = output.wait(events, max(0.0, deadline - time.monotonic()))
    for each in found:
        each.turn(ready)


class _Installing(Connection):
    """The connection to a host that installs.

    Attributes:
        state: "sending", "staged" or "installed".
        problem: a sentence that says why it cannot; empty if it can.
        has_changed: whether the host had another agspeed or none, and has confirmed that it keeps the change.
    """

    loss = "was lost"
    end_s = 300.0  # pip takes the change back

    def __init__(self, host: Host, starter: Starter, output: Output, package: Package) -> None:
        job: dict[str, Any] = {
            "kind": "install",
            "command": [],
            "folder": "",
            "key": None,
            "environment": {},
            "wheel": package.name,
            "size": len(package.content),
            "sha256": hashlib.sha256(package.content).hexdigest(),
            "torch": package.torches.get(host.name, ""),
        }
        super().__init__(host, f"host {host.name}", starter, output, job, carried_code.packed())
        self.state, self.problem = "sending", ""
        self._content, self._num_sent = package.content, 0
        self._is_there = self._is_kept = False

    @property
    def has_changed(self) -> bool:
        return self._is_kept and self._has_confirmed and not self._is_there

    @property
    def is_connecting(self) -> bool:
        return self.description is None and not self.is_over

    def turn(self, ready: Collection[int]) -> None:
        """Takes what has come, and sends the wheel in pieces."""
        try:
            self.note(ready)
        except AgspeedError as error:
            self.problem = self.problem or str(error)
            self.kill()
            return
        self._has_started |= self.description is not None  # from now on, the agent has to be ended with care
        while not self.is_over and not self._link.is_sending and self._num_sent < len(self._content):
            piece = self._content[self._num_sent : self._num_sent + _CHUNK_BYTES]
            self._num_sent += len(piece)
            self._link.send("wheel", 0, piece)

    def tell(self, kind: str) -> None:
        self._link.send(kind, 0)
        self._is_kept = kind == "keep"

    def give_up(self, seconds: float) -> None:
        self.problem = (
            f"{self.name} has not answered after {seconds:g} s; check that it is up and that "
            f"`{self.attempt}` is quick, or raise --start-timeout."
        )
        self.kill()

    def _note_of_job(self, frame: frames.Frame) -> None:
        match frame.kind, frame.value:
            case "staged", bool(is_there) if self.state == "sending":
                self.state, self._is_there = "staged", is_there
            case "installed", 0 if self.state == "staged":
                self.state = "installed"
            case "undone", str(sentence) if self._is_ending:
                self._has_confirmed = True
                if sentence:
                    self.problem = self.problem or f"{self.name}: {sentence}"
            case _:
                raise frames.FrameError(repr(frame.kind[:60]))
