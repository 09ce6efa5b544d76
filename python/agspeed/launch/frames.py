# SPDX-License-Identifier: Apache-2.0
"""The messages between the launcher and an agent, over two pipes: one JSON object per frame, and bytes behind it.

    frame = size of the JSON, size of the bytes (4 bytes each, big-endian), JSON, bytes
    JSON  = {"kind": value}

    launcher to agent                    agent to launcher
    {"job": {...}}    what to run        {"ready": {...}}     the job can start here
    {"start": [...]}  ranks' variables   {"output": [0, 1]} bytes     rank of this host, 0 for stdout or 1 for stderr
    {"ask": 0}        what is there      {"facts": {...}}     this host, in a check (`check/facts.py`)
    {"taken": [n, m]} output bytes       {"failed": [1, -9]}  rank of this host, status
    {"end": 0}        end the ranks      {"over": 0}          the ranks have ended, all output has been sent
    {"alive": 0}                         {"error": ["sentence", true]}   true: the user's mistake
    {"others": [...]} to be reached      {"rails": {...}}     this host's interfaces (`reach/`)
                                         {"failures": [...]}  the interfaces that it does not reach
    {"argument": 0} bytes   a piece      {"result": [1, true]} bytes   rank of this host or member; true: the last

In an elastic job, and between a launcher that attaches and the agent of an earlier one (`attach/`):

    launcher to agent                        agent to launcher
    {"add": [4, {...}]}   start member 4     {"gone": [4, -9]}   it has ended, with this status
    {"expel": 4}          end it             {"report": {...}}   members and what the agent has kept
    {"control": 4} bytes  a message to it    {"control": 4} bytes   a message of it
    {"progress": [...]}   to be kept         {"absent": 0}       there is no earlier agent
    {"probe": {...}}      listen (`reach/`)
    {"interfaces": [..]}  end of the probe, and what members use; none for no change
                                             {"refused": "sentence"}   another launcher owns the agent

In an installation (`install/installer.py`):

    launcher to agent                        agent to launcher
    {"wheel": 0} bytes    a piece of it      {"staged": true}    it is there; true if it is installed already
    {"install": 0}        install it         {"installed": 0}
    {"keep": 0}           and keep it        {"undone": ""}      after "end"; a sentence if something is left

An agent sends at most `WINDOW_BYTES` of each stream before the launcher has taken them. So other messages never wait
behind output.

Threading: one thread owns a `Link`.
"""

from __future__ import annotations

import json
import os
import select
import struct
from typing import Any, NamedTuple, NoReturn

from agspeed import bounded_json

__all__ = ["MOST_AGENT_BYTES", "MOST_LAUNCHER_BYTES", "WINDOW_BYTES", "ClosedError", "Frame", "FrameError", "Link"]

MOST_AGENT_BYTES = 1 << 18
"""The longest JSON of an agent, and the most bytes behind it."""
MOST_LAUNCHER_BYTES = 1 << 24
"""The same of a launcher. A job holds the environment."""
WINDOW_BYTES = 1 << 18
_SIZES = struct.Struct(">II")
_CHUNK_BYTES = 1 << 16
_SHOWN_BYTES = 60


class Frame(NamedTuple):
    kind: str
    value: Any
    data: bytes


class FrameError(ValueError):
    """The other side sent bytes that are not a frame. The message says which, for the end of a sentence."""


class ClosedError(Exception):
    """The other side has closed the pipe."""


class Link:
    """Both directions between a launcher and an agent. It owns its two descriptors, and never waits.

    Attributes:
        is_open: whether the other side may still send frames.
    """

    def __init__(self, source: int, sink: int, most_bytes: int) -> None:
        """most_bytes: the longest JSON that the other side may send, and the most bytes behind it."""
        self.is_open = True
        self._source, self._sink = source, sink
        self._most_bytes = most_bytes
        self._unread = bytearray()
        self._unsent = bytearray()
        for descriptor in (source, sink):
            os.set_blocking(descriptor, False)

    @property
    def is_sending(self) -> bool:
        """Whether there are bytes that the pipe has not taken yet."""
        return bool(self._unsent)

    def events(self) -> dict[int, int]:
        """The descriptors to wait for, with their events for select.poll()."""
        found = {self._source: select.POLLIN} if self.is_open else {}
        return found | ({self._sink: select.POLLOUT} if self._unsent and self._sink >= 0 else {})

    def send(self, kind: str, value: Any, data: bytes = b"") -> None:
        """Sends a frame, or keeps what the pipe does not take yet for `send_rest`."""
        body = json.dumps({kind: value}).encode()
        self._unsent += _SIZES.pack(len(body), len(data)) + body + data
        self.send_rest()

    def send_code(self, code: bytes) -> None:
        """Sends bytes that the other side's program reads before frames (`install/carried_code.py`)."""
        self._unsent += code
        self.send_rest()

    def send_rest(self) -> None:
        """Writes as much as the pipe takes. Bytes to a side that has closed the pipe are dropped."""
        try:
            while self._unsent and self._sink >= 0:
                del self._unsent[: os.write(self._sink, self._unsent[:_CHUNK_BYTES])]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()

    def receive(self) -> list[Frame]:
        """Reads once. Returns: the frames that are complete now.

        Raises: FrameError, and ClosedError at the end. Every later call raises ClosedError.
        """
        if not self.is_open:
            raise ClosedError
        try:
            data = os.read(self._source, _CHUNK_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.is_open = False
            raise ClosedError
        self._unread += data
        return self._complete()

    def close_sink(self) -> None:
        """Lets the other side see the end."""
        if self._sink >= 0:
            os.close(self._sink)
        self._sink = -1

    def close(self) -> None:
        self.close_sink()
        if self._source >= 0:
            os.close(self._source)
        self._source, self.is_open = -1, False

    def _complete(self) -> list[Frame]:
        found = []
        while len(self._unread) >= _SIZES.size:
            size, data_size = _SIZES.unpack_from(self._unread)
            if not 2 <= size <= self._most_bytes or data_size > self._most_bytes:
                self._refuse(bytes(self._unread))
            begin, end = _SIZES.size + size, _SIZES.size + size + data_size
            if len(self._unread) < end:
                break
            body, data = bytes(self._unread[_SIZES.size : begin]), bytes(self._unread[begin:end])
            del self._unread[:end]
            found.append(Frame(*self._message(body), data))
        return found

    def _message(self, body: bytes) -> tuple[str, Any]:
        try:
            message = bounded_json.loads(body)
        except ValueError:
            self._refuse(body)
        if not isinstance(message, dict) or len(message) != 1:
            self._refuse(body)
        ((kind, value),) = message.items()
        return kind, value

    def _refuse(self, data: bytes) -> NoReturn:
        self.is_open = False
        raise FrameError(repr(data[:_SHOWN_BYTES])[1:])
