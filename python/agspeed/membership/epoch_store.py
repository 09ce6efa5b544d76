# SPDX-License-Identifier: Apache-2.0
"""The store in which the members of an epoch find each other: keys and values that last as long as the epoch. Pure.

Each request belongs to an epoch. Requests of earlier epochs fail. Values are texts (base64, as members send them).

    set [key, value]      get [key], wait [keys]: answered once all are set      check [keys]
    add [key, number]     swap [key, expected, wanted]: returns the value        delete [key]      count []
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Answer", "EpochStore"]

_MOST_BYTES = 1 << 26


class Answer(NamedTuple):
    """A message to a member. `value` is an error's text if `is_ok` is false."""

    member: int
    request: int
    is_ok: bool
    value: Any


@dataclass
class _Waiting:
    member: int
    request: int
    keys: list[str]
    gets_value: bool


class EpochStore:
    """The values of the current epoch.

    Attributes:
        epoch: its number; 0 before the first.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self._values: dict[str, str] = {}
        self._num_bytes = 0
        self._waiting: list[_Waiting] = []

    def begin(self, epoch: int) -> list[Answer]:
        """Forgets all values. Returns: the end of requests that still waited."""
        left = [Answer(each.member, each.request, False, "the epoch is over") for each in self._waiting]
        self.epoch, self._values, self._num_bytes, self._waiting = epoch, {}, 0, []
        return left

    def ask(self, member: int, request: int, epoch: int, operation: str, arguments: Any) -> list[Answer]:
        """Executes a request. Returns: answers, also to members that have waited for it."""
        if epoch != self.epoch:
            return [Answer(member, request, False, "the epoch is over")]
        match operation, arguments:
            case ("get", [str(key)]):
                self._waiting.append(_Waiting(member, request, [key], gets_value=True))
                return self._wake()
            case ("wait", [list(keys)]):
                self._waiting.append(_Waiting(member, request, [str(key) for key in keys], gets_value=False))
                return self._wake()
        is_ok, value = self._execute(operation, arguments)
        return [Answer(member, request, is_ok, value), *self._wake()]

    def forget(self, member: int) -> None:
        """Drops the requests of a member that has ended."""
        self._waiting = [each for each in self._waiting if each.member != member]

    def _execute(self, operation: str, arguments: Any) -> tuple[bool, Any]:
        match operation, arguments:
            case ("set", [str(key), str(value)]):
                return self._set(key, value)
            case ("check", [list(keys)]):
                return True, all(key in self._values for key in keys)
            case ("add", [str(key), int(number)]):
                return self._add(key, number)
            case ("swap", [str(key), str(expected), str(wanted)]):
                return self._swap(key, expected, wanted)
            case ("delete", [str(key)]):
                return True, self._delete(key)
            case ("count", []):
                return True, len(self._values)
        return False, f"{operation!r} is no operation of the store, or has wrong arguments"

    def _set(self, key: str, value: str) -> tuple[bool, Any]:
        before = self._values.get(key)
        num_bytes = self._num_bytes + len(value) - len(before or "") + (len(key) if before is None else 0)
        if num_bytes > _MOST_BYTES:
            return False, f"the store holds {self._num_bytes} bytes, and {_MOST_BYTES} is the most"
        self._values[key], self._num_bytes = value, num_bytes
        return True, 0

    def _delete(self, key: str) -> bool:
        value = self._values.pop(key, None)
        self._num_bytes -= 0 if value is None else len(key) + len(value)
        return value is not None

    def _add(self, key: str, number: int) -> tuple[bool, Any]:
        try:
            total = int(base64.b64decode(self._values.get(key, ""), validate=True) or b"0") + number
        except ValueError:
            return False, f"the value of {key!r} is not a number"
        is_ok, error = self._set(key, base64.b64encode(str(total).encode()).decode())
        return (True, total) if is_ok else (False, error)

    def _swap(self, key: str, expected: str, wanted: str) -> tuple[bool, Any]:
        """As torch's Store.compare_set: an absent key is set if nothing is expected."""
        current = self._values.get(key)
        if current == expected or (current is None and not expected):
            is_ok, error = self._set(key, wanted)
            return (True, wanted) if is_ok else (False, error)
        return True, expected if current is None else current

    def _wake(self) -> list[Answer]:
        done = [each for each in self._waiting if all(key in self._values for key in each.keys)]
        self._waiting = [each for each in self._waiting if each not in done]
        return [
            Answer(each.member, each.request, True, self._values[each.keys[0]] if each.gets_value else 0)
            for each in done
        ]
