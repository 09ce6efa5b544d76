# SPDX-License-Identifier: Apache-2.0
"""Checks whether two hosts have the same job key, without sending it.

    caller    -> answerer   magic, whether it has a key, 32 random bytes
    answerer  -> caller     the same with its own values
    caller    -> answerer   HMAC-SHA256 under its key over "caller" and both messages
    answerer  -> caller     1 and its own HMAC over "answerer" and both messages, or 0 and zeros

The caller proves its key first, so that a stranger learns nothing from a listener. If neither side has a key, the
proofs use an empty key and prove nothing, as in a job without a key. Both hello messages begin with a magic. No other
data that is authenticated with the job key begins with it.
"""

from __future__ import annotations

import hmac
import os
import stat
from pathlib import Path

from agspeed.errors import UserError
from agspeed.netprobe.wire import Connection, PeerError

__all__ = [
    # keep-sorted
    "ABSENT_HERE",
    "ABSENT_THERE",
    "DIFFERENT",
    "EQUAL",
    "NONE",
    "StrangerError",
    "challenge",
    "is_proven",
    "load_job_key",
]

EQUAL, NONE = "equal", "none on either side"
DIFFERENT, ABSENT_HERE, ABSENT_THERE = "different", "only the other host has one", "the other host has none"

_MAGIC = b"AGDOCTR1"
_NONCE_BYTES = 32
_DIGEST_BYTES = 32
_LEAST_KEY_BYTES = 16
_MOST_KEY_BYTES = 4096
_MOST_SPACE_BYTES = 64
"""Most white space that may surround the key in a file."""
_INHERITED, _MEMORY_NAME = Path("/proc/self/fd"), "/memfd:agspeed-job-key"


class StrangerError(PeerError):
    """The program that answers is no listener of ours."""


def load_job_key(text: str | None, file: Path | None) -> bytes:
    """Reads the key as ranks do (comm/security/job_key.h); empty if there is none. Raises: UserError."""
    if text is None and file is None:
        return b""
    content = text.encode() if text is not None else _read(file or Path())
    key = content.strip(b" \t\r\n")
    if len(key) < _LEAST_KEY_BYTES:
        raise UserError(
            f"the job key has {len(key)} bytes, at least {_LEAST_KEY_BYTES} are needed: openssl rand -hex 32 makes a "
            "good one"
        )
    if len(key) > _MOST_KEY_BYTES:
        raise UserError(f"the job key has more than {_MOST_KEY_BYTES} bytes: openssl rand -hex 32 makes a good one")
    return key


def challenge(connection: Connection, key: bytes) -> str:
    """The caller's side. Returns: EQUAL, NONE, or how the keys differ; then the connection cannot be used further."""
    mine = _hello(key)
    connection.send(mine)
    theirs = _receive_hello(connection)
    they_have_one = theirs[len(_MAGIC)] == 1
    if they_have_one != bool(key):
        return ABSENT_HERE if they_have_one else ABSENT_THERE
    connection.send(_proof(key, b"caller", mine, theirs))
    is_accepted = connection.receive(1) == b"\1"
    proof = connection.receive(_DIGEST_BYTES)
    if not is_accepted or not hmac.compare_digest(proof, _proof(key, b"answerer", mine, theirs)):
        return DIFFERENT
    return EQUAL if key else NONE


def is_proven(connection: Connection, key: bytes) -> bool:
    """The answerer's side: whether the caller has the same key."""
    theirs = _receive_hello(connection)
    mine = _hello(key)
    connection.send(mine)
    if (theirs[len(_MAGIC)] == 1) != bool(key):
        return False
    proof = connection.receive(_DIGEST_BYTES)
    if not hmac.compare_digest(proof, _proof(key, b"caller", theirs, mine)):
        connection.send(bytes(1 + _DIGEST_BYTES))
        return False
    connection.send(b"\1" + _proof(key, b"answerer", theirs, mine))
    return True


def _read(file: Path) -> bytes:
    _check_inherited(file)
    try:
        with file.open("rb") as opened:
            info = os.fstat(opened.fileno())
            content = opened.read(_MOST_KEY_BYTES + _MOST_SPACE_BYTES)
    except OSError as error:
        raise UserError(f"cannot read the job key in {file}: {error.strerror}") from None
    if info.st_uid not in (os.geteuid(), 0):
        raise UserError(f"the job key in {file} belongs to user {info.st_uid}, not to you: make a file of your own")
    if info.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UserError(f"the job key in {file} can be read by others: chmod 600 {file}")
    return content


def _check_inherited(file: Path) -> None:
    """Raises: UserError for a descriptor that does not refer to the memory with the key of `agspeed run`."""
    if file.parent != _INHERITED:
        return
    target = os.readlink(file) if os.path.lexists(file) else ""
    if not target.startswith(_MEMORY_NAME):
        raise UserError(
            f"`agspeed run` hands the job key on as descriptor {file.name}, which is "
            f"{'another file' if target else 'not open'} in this process: a program that it started has closed the "
            "descriptor before it started this process, as Python's subprocess does without close_fds=False. Start the "
            "ranks without that program, or set AGSPEED_JOB_KEY_FILE to a private file on all ranks"
        )


def _hello(key: bytes) -> bytes:
    return _MAGIC + (b"\1" if key else b"\0") + os.urandom(_NONCE_BYTES)


def _receive_hello(connection: Connection) -> bytes:
    if connection.receive(len(_MAGIC)) != _MAGIC:
        raise StrangerError("is answered by another program: `agspeed doctor` of the same version must listen there")
    return _MAGIC + connection.receive(1 + _NONCE_BYTES)


def _proof(key: bytes, who: bytes, of_caller: bytes, of_answerer: bytes) -> bytes:
    return hmac.digest(key, _MAGIC + who + of_caller + of_answerer, "sha256")
