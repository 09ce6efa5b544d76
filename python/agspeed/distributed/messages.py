# SPDX-License-Identifier: Apache-2.0
"""Messages between ranks in places where a stranger can write as well: a job's store, connections without a key.

A message consists of a proof and a content. The proof shows that the writer has the job key: it is an HMAC-SHA256 over
the content and over the place of the message. A message that was copied to another place is therefore refused. Code
must not trust a message until `Seal.opened` has checked its proof and length, and `parsed` has checked the type, length
and alphabet of everything in it.

    64 hexadecimal digits, or "-" without a key; a space; the content

The module keeps no state, does not import torch, and works on any thread.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from agspeed import bounded_json, config
from agspeed.errors import AgspeedError
from agspeed.netprobe import load_job_key

__all__ = ["MOST_BYTES", "MessageError", "Seal", "count", "job_key", "mapping", "parsed", "text", "texts", "yes"]

MOST_BYTES = 1 << 22
"""The longest message that is read."""
_MAGIC = b"AGMSG001"
"""Begins the bytes that a proof covers. No other data that is authenticated with the job key begins with it."""
_PROOF = re.compile(rb"-|[0-9a-f]{64}")
_SHOWN = 200

T = TypeVar("T")


class MessageError(AgspeedError):
    """Data that was read is not a message of this job."""


def job_key() -> bytes:
    """The key in this process's settings; empty if there is none. Raises: UserError for a key that ranks refuse."""
    settings = config.resolve()
    return load_job_key(settings.job_key.reveal() if settings.job_key else None, settings.job_key_file)


class Seal:
    """Makes and checks the proofs of one place with the job key. With an empty key, messages carry no proof."""

    def __init__(self, key: bytes, *place: str) -> None:
        self._key, self._place = key, place

    def at(self, *parts: str) -> Seal:
        """Returns the seal of a place within this one."""
        return Seal(self._key, *self._place, *parts)

    def sealed(self, content: bytes) -> bytes:
        """Returns the content as a message."""
        return (self._proof(content) if self._key else b"-") + b" " + content

    def opened(self, message: bytes, what: str) -> bytes:
        """Checks a message and returns its content. what: the subject of an error's sentence, e.g. "rank 1's record".

        Raises: MessageError if the message is too long or its proof is not valid here.
        """
        if len(message) > MOST_BYTES:
            raise MessageError(f"{what} has {len(message)} bytes, at most {MOST_BYTES} are read: it is not agspeed's")
        proof, space, content = message.partition(b" ")
        if not space or not _PROOF.fullmatch(proof):
            raise MessageError(f"{what} is no message of this version: install the same version of agspeed everywhere")
        if proof == b"-" and self._key:
            raise MessageError(
                f"{what} does not prove that its writer has the job key: a stranger wrote it, or that rank has no key; "
                "give all ranks the same key"
            )
        if proof != b"-" and not self._key:
            raise MessageError(f"{what} was written with a job key, this rank has none: give all ranks the same key")
        if self._key and not hmac.compare_digest(proof, self._proof(content)):
            raise MessageError(
                f"{what} was written with another job key, or copied from elsewhere: give all ranks the same key, and "
                "keep strangers away from the job's store"
            )
        return content

    def _proof(self, content: bytes) -> bytes:
        place = json.dumps(self._place).encode()
        return hmac.digest(self._key, _MAGIC + place + b"\n" + content, "sha256").hex().encode()


def parsed(content: bytes, what: str, parse: Callable[[Any], T]) -> T:
    """Decodes the JSON in `content` and returns the result of `parse` on it.

    parse: raises ValueError, TypeError or KeyError for a value that it does not accept.

    Raises: MessageError if `content` is not JSON, or if `parse` does not accept it.
    """
    try:
        return parse(bounded_json.loads(content))
    except (KeyError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {plain(str(error), _SHOWN)}"
        raise MessageError(f"{what} does not have the format of this version of agspeed: {why}") from None


# --- parts of a content -----------------------------------------------------------------------------------------------


def plain(value: str, most: int) -> str:
    """Cuts a text to `most` letters, with spaces for unprintable ones: safe to show, and accepted by `text`."""
    return "".join(letter if letter.isprintable() else " " for letter in value[:most])


def text(found: Any, most: int, alphabet: str = "") -> str:
    """Accepts at most `most` printable letters. alphabet: a regular expression that the whole text must match."""
    if not isinstance(found, str) or len(found) > most or not found.isprintable():
        raise ValueError(f"no text of at most {most} printable letters")
    if alphabet and not re.fullmatch(alphabet, found):
        raise ValueError(f"a text that is not {alphabet}")
    return found


def count(found: Any, most: int) -> int:
    """Accepts an integer from 0 to `most`."""
    if type(found) is not int or not 0 <= found <= most:
        raise ValueError(f"no number from 0 to {most}")
    return found


def texts(found: Any, num: int, most: int, alphabet: str = "") -> list[str]:
    """Accepts a list of exactly `num` texts."""
    if not isinstance(found, list) or len(found) != num:
        raise ValueError(f"no list of {num} texts")
    return [text(each, most, alphabet) for each in found]


def mapping(found: Any, most: int, most_letters: int) -> dict[str, str]:
    """Accepts a mapping of names to texts with at most `most` entries."""
    if not isinstance(found, dict) or len(found) > most:
        raise ValueError(f"no mapping of at most {most} texts")
    return {text(name, most_letters): text(value, most_letters) for name, value in found.items()}


def yes(found: Any) -> bool:
    """Accepts only True: the message of a key that has no content beyond its existence."""
    if found is not True:
        raise ValueError("not true")
    return True
