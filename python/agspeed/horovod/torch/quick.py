# SPDX-License-Identifier: Apache-2.0
"""Fast C++ versions of the calls that scripts make for every tensor.

A C++ object runs the call if its name is repeated, and falls back to the Python function otherwise. One table for the
process keeps the operations in flight (``comm/horovod/handle_table.h``).

Thread-safety: any thread may call all functions.
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
    """The process's _native.NamedHandles. Requires: the native extension is there."""
    module: Any = native.load()
    return module.NamedHandles()


def use(group: Any) -> None:
    """Sets the group of all ranks; None: there is no job."""
    table().use(group)


def quick_allreduce(global_set: object) -> Callable[[Callable[_P, int]], Callable[_P, int]]:
    """A decorator that makes the fast version of a function with the arguments of allreduce_async_().

    global_set: the default of the function's process set.
    """

    def make(function: Callable[_P, int]) -> Callable[_P, int]:
        if (module := _loaded()) is None:
            return function
        return functools.update_wrapper(module.quick_allreduce(table(), function, global_set), function)

    return make


def quick_synchronize(function: Callable[[int], Any]) -> Callable[[int], Any]:
    """A decorator that makes the fast version of a function that waits for a handle."""
    if (module := _loaded()) is None:
        return function
    return functools.update_wrapper(module.quick_synchronize(table(), function), function)


def _loaded() -> Any:
    try:
        return native.load()
    except UserError:
        return None  # init() raises the error
