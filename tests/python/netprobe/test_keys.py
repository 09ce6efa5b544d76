# SPDX-License-Identifier: Apache-2.0
"""Keys are compared without being sent, and are read in the same way as ranks read them."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from agspeed.errors import UserError
from agspeed.launch import job_key
from agspeed.netprobe import keys
from agspeed.netprobe.wire import Connection, PeerError
from tests.python.netprobe.conftest import KEY

LIMIT_S = 60.0


class Recorded(Connection):
    """A connection that records everything it sends."""

    sent = b""

    def send(self, data: bytes) -> None:
        self.sent += data
        super().send(data)


def handshake(callers: bytes, answerers: bytes) -> tuple[str, bool, bytes]:
    """Returns the findings of the caller and the answerer, and all bytes that went between them."""
    left, right = socket.socketpair(socket.AF_UNIX)
    left_end, right_end = (_recorded(end) for end in (left, right))
    found: list[bool] = []

    def answer() -> None:
        with right_end:
            found.append(keys.is_proven(right_end, answerers))

    thread = threading.Thread(target=answer)
    thread.start()
    with left_end:
        result = keys.challenge(left_end, callers)
    thread.join()
    return result, found[0], left_end.sent + right_end.sent


def _recorded(end: socket.socket) -> Recorded:
    made = object.__new__(Recorded)  # a Unix socket has no TCP_NODELAY
    made.socket, made.deadline, made._unread = end, time.monotonic() + LIMIT_S, b""
    return made


@pytest.mark.parametrize(
    ("callers", "answerers", "expected"),
    [
        (KEY, KEY, keys.EQUAL),
        (b"", b"", keys.NONE),
        (KEY, KEY[::-1], keys.DIFFERENT),
        (KEY, b"", keys.ABSENT_THERE),
        (b"", KEY, keys.ABSENT_HERE),
    ],
)
def test_both_ends_find_out_and_no_key_is_sent(callers: bytes, answerers: bytes, expected: str) -> None:
    result, is_proven, sent = handshake(callers, answerers)
    assert (result, is_proven) == (expected, expected in (keys.EQUAL, keys.NONE))
    assert KEY not in sent and KEY[::-1] not in sent


def test_an_answerer_that_only_claims_to_know_the_key_is_found_out() -> None:
    left, right = socket.socketpair(socket.AF_UNIX)
    with _recorded(left) as caller, right:
        right.sendall(keys._hello(KEY) + b"\1" + bytes(32))
        assert keys.challenge(caller, KEY) == keys.DIFFERENT


def test_another_program_is_distinguished_from_a_doctor() -> None:
    left, right = socket.socketpair(socket.AF_UNIX)
    with _recorded(left) as caller, right:
        right.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
        with pytest.raises(PeerError, match="another program"):
            keys.challenge(caller, KEY)


def test_keys_are_read_as_ranks_read_them(tmp_path: Path) -> None:
    file = tmp_path / "job.key"
    assert keys.load_job_key(None, None) == b""
    assert keys.load_job_key(f" {KEY.decode()}\n", file) == KEY
    with pytest.raises(UserError, match="cannot read the job key"):
        keys.load_job_key(None, file)
    file.write_bytes(KEY + b"\n")
    file.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        keys.load_job_key(None, file)
    file.chmod(0o600)
    assert keys.load_job_key(None, file) == KEY
    with pytest.raises(UserError, match="has 5 bytes"):
        keys.load_job_key("short", None)


def test_a_long_key_is_refused_and_not_cut(tmp_path: Path) -> None:
    file = tmp_path / "job.key"
    file.touch(mode=0o600)
    file.write_bytes(b"k" * 4096 + b"\n")
    assert keys.load_job_key(None, file) == b"k" * 4096
    for size in (4097, 4160, 100_000):
        file.write_bytes(b"k" * size)
        with pytest.raises(UserError, match="more than 4096 bytes"):
            keys.load_job_key(None, file)
    with pytest.raises(UserError, match="more than 4096 bytes"):
        keys.load_job_key("k" * 4097, None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_another_user_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "job.key"
    file.touch(mode=0o600)
    file.write_bytes(KEY)
    os.chown(file, 4711, -1)
    with pytest.raises(UserError, match="belongs to user 4711"):
        keys.load_job_key(None, file)


def test_an_inherited_key_is_the_launchers_memory_or_refused(tmp_path: Path) -> None:
    descriptor = job_key.in_memory(job_key.new())
    file = Path(f"/proc/self/fd/{descriptor}")
    assert len(keys.load_job_key(None, file)) == 64
    (tmp_path / "private").touch(mode=0o600)
    (tmp_path / "private").write_bytes(b"another secret of this user")
    other = os.open(tmp_path / "private", os.O_RDONLY)
    os.dup2(other, descriptor)
    with pytest.raises(UserError, match="which is another file in this process"):
        keys.load_job_key(None, file)
    os.close(other)
    os.close(descriptor)
    with pytest.raises(UserError, match="which is not open in this process"):
        keys.load_job_key(None, file)
