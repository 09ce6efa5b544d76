# SPDX-License-Identifier: Apache-2.0
"""Makes several calls at once, with a deadline. Late threads are left behind, and end with the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["all_at_once"]

Result = TypeVar("Result")


def all_at_once(calls: Sequence[Callable[[], Result]], deadline: float) -> list[Result | None]:
    """Returns the result of each call, or None for a call that has not returned by `deadline` (time.monotonic()).

    If calls raise exceptions, this raises the first one, once the other calls have ended or are late.
    """
    results: list[Result | None] = [None] * len(calls)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = calls[index]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    if errors:
        raise errors[0]
    return list(results)
