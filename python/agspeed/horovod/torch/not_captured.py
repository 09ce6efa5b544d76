# SPDX-License-Identifier: Apache-2.0
"""Keeps functions out of Dynamo's captures: a captured model calls them in Python, and Dynamo does not look inside.

This module does not import Dynamo. Until other code imports it, the functions run without a wrapper of Dynamo's.

Thread-safety: any thread may call all functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from agspeed.torch_compat import dynamo
from agspeed.when_loaded import when_loaded

__all__ = ["not_captured"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_waiting: list[Callable[[], None]] = []
_is_loaded = False


def not_captured(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Returns a version of the function that Dynamo does not capture. Both live as long as the process."""
    called = function

    def leave_out() -> None:
        nonlocal called
        called = torch.compiler.disable(function, reason="it waits for other ranks")

    @functools.wraps(function)
    def call(*args: _P.args, **keywords: _P.kwargs) -> _R:
        return called(*args, **keywords)

    if _is_loaded:
        leave_out()
    else:
        _waiting.append(leave_out)
    return call


def _dynamo_is_loaded() -> None:
    global _is_loaded
    _is_loaded = True
    for leave_out in _waiting:
        leave_out()
    _waiting.clear()


when_loaded(dynamo.HOME, _dynamo_is_loaded)
