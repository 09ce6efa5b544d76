# SPDX-License-Identifier: Apache-2.0
"""The store of torch.distributed in which the members of an epoch find each other. Its values are at the coordinator.

So it needs no port and no name look-up, and it survives the loss of any member.
"""

from __future__ import annotations

import base64
import datetime
from typing import Any

from torch import distributed

from agspeed.elastic.control import Control

__all__ = ["CoordinatorStore"]


class CoordinatorStore(distributed.Store):  # type: ignore[misc, name-defined]
    """The store of one epoch. Functions raise RuntimeError once the epoch has lost a member."""

    def __init__(self, control: Control, epoch: int) -> None:
        super().__init__()
        self._control, self._epoch = control, epoch

    def set(self, key: str, value: Any) -> None:
        self._ask("set", key, _text(value))

    def get(self, key: str) -> bytes:
        return base64.b64decode(self._ask("get", key))

    def add(self, key: str, amount: int) -> int:
        return int(self._ask("add", key, amount))

    def check(self, keys: list[str]) -> bool:
        return bool(self._ask("check", list(keys)))

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        self._ask("wait", list(keys))

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        return base64.b64decode(self._ask("swap", key, _text(expected), _text(desired)))

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete", key))

    def num_keys(self) -> int:
        return int(self._ask("count"))

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Waits end with the epoch, not by a time limit."""

    def _ask(self, operation: str, *arguments: Any) -> Any:
        try:
            return self._control.ask(self._epoch, operation, list(arguments))
        except Exception as error:
            raise RuntimeError(f"the store of epoch {self._epoch}: {error}") from None


def _text(value: Any) -> str:
    raw = value.encode() if isinstance(value, str) else bytes(value)
    return base64.b64encode(raw).decode()
