# SPDX-License-Identifier: Apache-2.0
"""Weak references to methods, for registries that outlive the methods' objects."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def weakly(method: Callable[Parameters, Result]) -> Callable[Parameters, Result | None]:
    """Returns a function that calls a bound `method` without keeping its object alive.

    Use it for Dynamo's registries and compiled code: the garbage collector does not see their references, so they would
    keep the user's model for ever. The function returns None once the object has been freed.
    """
    reference = weakref.WeakMethod(method)

    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result | None:
        alive = reference()
        return alive(*args, **kwargs) if alive is not None else None

    return call
