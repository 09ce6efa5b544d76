# SPDX-License-Identifier: Apache-2.0
"""Sockets of this process that look like inspection points, and documents of ranks."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any


def document(rank: int = 0, world_size: int = 2, **changes: Any) -> dict[str, Any]:
    """Returns what a rank without operations says."""
    return {
        "kind": "agspeed.inspection",
        "version": 1,
        "process": 4711 + rank,
        "host": "host-a",
        "job": "0a1b2c3d",
        "rank": rank,
        "world_size": world_size,
        "state": "joined",
        "stack": [],
        "groups": [],
        "peers": [],
        "rails": [],
    } | changes


def group(name: str = "world", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "is_named": False,
        "ranks": [0, 1],
        "calls": 7,
        "last_call": "all_reduce(4 x f32, sum)",
        "failure": "",
        "num_operations": len(changes.get("operations", [])),
        "operations": [],
        "not_started": [],
    } | changes


def operation(*waits_for: int, sequence: int | None = 7, **changes: Any) -> dict[str, Any]:
    found = {
        "call": "all_reduce(4 x f32, sum)",
        "name": "",
        "seconds": 12.5,
        "bytes": 32,
        "bytes_moved": 16,
        "blocked_by": "",
        "waits_for": list(waits_for),
    }
    return found | ({} if sequence is None else {"sequence": sequence}) | changes


@contextlib.contextmanager
def point(
    answer: Callable[[socket.socket], None], job: str = "0a1b2c3d", rank: int = 0, size: int = 2
) -> Iterator[str]:
    """Opens a point. `answer` serves each connection, in a thread. Yields the point's name."""
    name = f"agspeed-inspect-{job}-{rank}-{size}-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("\0" + name)
        listener.listen()
        listener.settimeout(0.1)
        is_over = threading.Event()

        def serve() -> None:
            while not is_over.is_set():
                with contextlib.suppress(TimeoutError):
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.settimeout(None)
                        answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield "@" + name
        finally:
            is_over.set()
            thread.join()


def sends(content: dict[str, Any] | bytes) -> Callable[[socket.socket], None]:
    """Returns a function that sends a document in packets, as a point does."""
    bytes_ = content if isinstance(content, bytes) else json.dumps(content).encode()

    def answer(connection: socket.socket) -> None:
        for start in range(0, len(bytes_), 32768):
            connection.send(bytes_[start : start + 32768])

    return answer
