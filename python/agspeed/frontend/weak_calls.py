# SPDX-License-Identifier: Apache-2.0
"""Methods handed to those who live longer than their object."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A bound `method` for a registry that would otherwise keep its object, and the user's model, for ever: Dynamo's
    registries, and its compiled code, whose references no garbage collector sees. Returns None once the object is gone.
    """
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        alive = reference()
        return alive(*args) if alive is not None else None

    return call
