# SPDX-License-Identifier: Apache-2.0
"""An agent's side of the connection to its launcher (`frames.py`).

Threading: one thread owns a `LauncherLink`.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Collection, Mapping
from typing import Any

from agspeed.errors import AgspeedError, UserError
from agspeed.launch import frames
from agspeed.launch.pipes import Piece

__all__ = ["LauncherLink"]


class LauncherLink:
    """An agent's side of the frames.

    Attributes:
        received: frames that have come and were not looked at.

    After `detach` there is no launcher: frames to it are dropped, until `attach` gives another one.
    """

    def __init__(self, link: frames.Link) -> None:
        self.received: list[frames.Frame] = []
        self._link: frames.Link | None = link
        self._silence_s = math.inf
        self._last_frame = time.monotonic()

    @property
    def is_attached(self) -> bool:
        return self._link is not None

    def detach(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link, self.received = None, []

    def attach(self, link: frames.Link) -> None:
        """Takes another launcher. It owns `link` from now on."""
        self._link, self._last_frame = link, time.monotonic()

    def send(self, kind: str, value: Any, data: bytes = b"") -> None:
        if self._link is not None:
            self._link.send(kind, value, data)

    def send_piece(self, piece: Piece) -> None:
        self.send("output", [piece.rank, piece.stream], piece.data)

    def limit_silence(self, seconds: float | None) -> None:
        """Takes a launcher for lost that has sent nothing for so long. None: only the end of the pipe shows it."""
        self._silence_s = seconds or math.inf

    def wait_for(self, kind: str) -> Any:
        """Returns the value of the next frame of this kind. Raises: ClosedError if the launcher ends the job."""
        return self.wait_for_frame(kind).value

    def wait_for_frame(self, kind: str, *others: str) -> frames.Frame:
        """Returns the next frame of one of these kinds. Raises: ClosedError if the launcher ends the job."""
        while True:
            while not self.received:
                self.poll(())
            found = self.received.pop(0)
            if found.kind in (kind, *others):
                return found
            if found.kind == "end":
                raise frames.ClosedError

    def poll(
        self, sources: Collection[int], seconds: float = math.inf, others: Mapping[int, int] | None = None
    ) -> set[int]:
        """Waits for `sources`, frames or the time. Returns: the sources that can be read.

        others: more descriptors to wait for, with their events for select.poll().

        Raises: ClosedError if the launcher or its connection is lost.
        """
        poller = select.poll()
        link = self._link
        events = {**dict.fromkeys(sources, select.POLLIN), **(others or {}), **({} if link is None else link.events())}
        for descriptor, event in events.items():
            poller.register(descriptor, event)
        silence_s = math.inf if link is None else self._silence_s
        left = min(seconds, self._last_frame + silence_s - time.monotonic())
        ready = {each for each, _ in poller.poll(None if left == math.inf else max(0.0, left) * 1000)}
        if link is not None:
            link.send_rest()
            if found := link.receive():
                self._last_frame = time.monotonic()
                self.received += found
            elif time.monotonic() > self._last_frame + silence_s:
                raise frames.ClosedError
        return ready.intersection(sources)

    def say_goodbye(self, error: AgspeedError | None) -> None:
        """Sends the reason why the job cannot run, if there is one, and all frames that wait. Raises: ClosedError."""
        if error is not None:
            self.send("error", [str(error), isinstance(error, UserError)])
        while self._link is not None and self._link.is_sending:
            self.poll(())
