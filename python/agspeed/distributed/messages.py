# SPDX-License-Identifier: Apache-2.0
"""Messages of ranks to each other where a stranger may write as well: a job's store, connections without a key.

A message is a content and, with a job key, the proof that its writer has that key: an HMAC-SHA256 over the content and
over the place where it stands, so that a message which was copied elsewhere is refused. Whatever is read is a
stranger's until `Seal.opened` has checked its proof and length, and `parsed` the type, length and alphabet of all that
is in it.

    64 hexadecimal digits, or "-" without a key; a space; the content

Stateless, without torch; any thread.
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
"""Of a content."""
_MAGIC = b"AGMSG001"
"""Nothing else that is authenticated with the job key begins so."""
_PROOF = re.compile(rb"-|[0-9a-f]{64}")
_SHOWN = 200

T = TypeVar("T")


class MessageError(AgspeedError):
    """Something that was read is no message of this job's."""


def job_key() -> bytes:
    """The key of this process's settings; empty where there is none. Raises: UserError for one that ranks refuse."""
    settings = config.resolve()
    return load_job_key(settings.job_key.reveal() if settings.job_key else None, settings.job_key_file)


class Seal:
    """The proofs of one place, with the job key (empty: messages carry none)."""

    def __init__(self, key: bytes, *place: str) -> None:
        self._key, self._place = key, place

    def at(self, *parts: str) -> Seal:
        """Of a place within this one."""
        return Seal(self._key, *self._place, *parts)

    def sealed(self, content: bytes) -> bytes:
        """The message."""
        return (self._proof(content) if self._key else b"-") + b" " + content

    def opened(self, message: bytes, what: str) -> bytes:
        """The content. what: begins the sentence of an error, as in "rank 1's record".

        Raises: MessageError.
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
    """What `parse` makes of the JSON. parse: raises ValueError, TypeError or KeyError for what it does not accept.

    Raises: MessageError.
    """
    try:
        return parse(bounded_json.loads(content))
    except (KeyError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {plain(str(error), _SHOWN)}"
        raise MessageError(f"{what} is not what this version of agspeed writes: {why}") from None


# --- parts of a content -----------------------------------------------------------------------------------------------


def plain(value: str, most: int) -> str:
    """What may be shown of a text, and what `text` accepts."""
    return "".join(letter if letter.isprintable() else " " for letter in value[:most])


def text(found: Any, most: int, alphabet: str = "") -> str:
    """Printable letters, at most so many. alphabet: a regular expression for all of it."""
    if not isinstance(found, str) or len(found) > most or not found.isprintable():
        raise ValueError(f"no text of at most {most} printable letters")
    if alphabet and not re.fullmatch(alphabet, found):
        raise ValueError(f"a text that is not {alphabet}")
    return found


def count(found: Any, most: int) -> int:
    if type(found) is not int or not 0 <= found <= most:
        raise ValueError(f"no number from 0 to {most}")
    return found


def texts(found: Any, num: int, most: int, alphabet: str = "") -> list[str]:
    """So many texts."""
    if not isinstance(found, list) or len(found) != num:
        raise ValueError(f"no list of {num} texts")
    return [text(each, most, alphabet) for each in found]


def mapping(found: Any, most: int, most_letters: int) -> dict[str, str]:
    """At most so many texts, by name."""
    if not isinstance(found, dict) or len(found) > most:
        raise ValueError(f"no mapping of at most {most} texts")
    return {text(name, most_letters): text(value, most_letters) for name, value in found.items()}


def yes(found: Any) -> bool:
    """The message whose being there is all that it says."""
    if found is not True:
        raise ValueError("not true")
    return True
