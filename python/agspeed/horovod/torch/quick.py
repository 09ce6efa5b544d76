# SPDX-License-Identifier: Apache-2.0
"""The calls that scripts make for every tensor: C++ where a name comes again, and else the functions they stand for.

Operations under way are kept in one table for the process (``comm/horovod/handle_table.h``).

Thread-safety: all functions, from any thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec

from agspeed import native
from agspeed.errors import UserError

__all__ = ["quick_allreduce", "quick_synchronize", "table", "use"]

_P = ParamSpec("_P")


@functools.cache
def table() -> Any:
    """_native.NamedHandles. Requires: the extension is there."""
    module: Any = native.load()
    return module.NamedHandles()


def use(group: Any) -> None:
    """The group of all ranks from now on; None: there is no job."""
    table().use(group)


def quick_allreduce(global_set: object) -> Callable[[Callable[_P, int]], Callable[_P, int]]:
    """Of a function with the arguments of allreduce_async_(), whose process set is `global_set` unless it is given."""

    def make(function: Callable[_P, int]) -> Callable[_P, int]:
        if (module := _loaded()) is None:
            return function
        return functools.update_wrapper(module.quick_allreduce(table(), function, global_set), function)

    return make


def quick_synchronize(function: Callable[[int], Any]) -> Callable[[int], Any]:
    """Of a function that waits for a handle."""
    if (module := _loaded()) is None:
        return function
    return functools.update_wrapper(module.quick_synchronize(table(), function), function)


def _loaded() -> Any:
    try:
        return native.load()
    except UserError:
        return None  # init() raises it
