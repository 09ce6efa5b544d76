# SPDX-License-Identifier: Apache-2.0
"""Kinds of code that Dynamo captures wrongly, by release of torch, and functions that recognise them.

Code of such a kind runs eagerly, and agspeed reports the reason. Comparisons of each captured graph with the module
itself find other wrong captures (`agspeed/frontend/shadow`). But a comparison needs a step that shows the difference,
and then the whole model runs eagerly, not only one frame. `tests/python/torch_compat/test_wrong_captures.py` fails on a
release that captures one of these kinds correctly.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

from agspeed.torch_compat.part import Part
from agspeed.torch_compat.release import minor

PART = Part(
    "wrong_captures",
    __name__,
    needs=(
        "torch._dynamo.source.AttrSource",
        "torch._dynamo.variables.base.VariableTracker.build",
        "torch._dynamo.variables.user_defined.UserDefinedClassVariable",
        "torch.autograd.function.FunctionCtx.set_materialize_grads",
        "torch.fx.GraphModule",
    ),
    lost="functions that want None for missing gradients are left to the comparison with the module",
)

if TYPE_CHECKING:
    from torch import fx

Release = tuple[int, int]


@dataclass(frozen=True)
class WrongCapture:
    """A kind of code that all supported releases before `until` capture wrongly; None: every release does."""

    name: str
    until: Release | None
    reason: str

    @property
    def applies(self) -> bool:
        return self.until is None or minor() < self.until


FULL_DEQUE = WrongCapture("full deque", None, "it changes a deque with a maxlen, which drops items")
ORDER = WrongCapture("order of a dict", None, "it changes an OrderedDict, whose order may change")
MISSING_GRADIENTS = WrongCapture("set_materialize_grads", None, "its backward wants None for missing gradients")
CLASS_CONSTANTS = WrongCapture("class constants", (2, 15), "it reads a class attribute that may change")
FUNCTION_IN_PLACE = WrongCapture("function in place", (2, 15), "a custom function changes a tensor in place")
ALL = (FULL_DEQUE, ORDER, MISSING_GRADIENTS, CLASS_CONSTANTS, FUNCTION_IN_PLACE)


def of_changed(value: object) -> str | None:
    """Why code that changes `value` must not be captured, or None."""
    if isinstance(value, deque) and value.maxlen is not None and FULL_DEQUE.applies:
        return FULL_DEQUE.reason
    return ORDER.reason if isinstance(value, OrderedDict) and ORDER.applies else None


def of_graph(gm: fx.GraphModule) -> str | None:
    """Why a captured graph must not be used, or None."""
    if not FUNCTION_IN_PLACE.applies:
        return None
    from torch import fx

    for body in gm.modules():
        for node in body.graph.nodes if isinstance(body, fx.GraphModule) else ():
            if "autograd_function_apply" in str(node.target) and isinstance(node.args[0], fx.Node):
                forward = getattr(body, str(node.args[0].target), None)
                if isinstance(forward, fx.GraphModule) and any(map(_is_in_place, forward.graph.nodes)):
                    return FUNCTION_IN_PLACE.reason
    return None


def left_out() -> tuple[Callable[..., Any], ...]:
    """Functions that Dynamo must not trace. A custom autograd function that calls one of them then runs eagerly."""
    from torch.autograd.function import FunctionCtx

    return (FunctionCtx.set_materialize_grads,) if MISSING_GRADIENTS.applies else ()


@contextlib.contextmanager
def guarding_classes() -> Iterator[None]:
    """Inside the block, Dynamo guards the class attributes that it treats as constants."""
    if not CLASS_CONSTANTS.applies:
        yield
        return
    import inspect

    from torch._dynamo.source import AttrSource
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.user_defined import UserDefinedClassVariable

    name_of_method = "var_getattr"
    own = getattr(UserDefinedClassVariable, name_of_method)

    def var_getattr(variable: Any, tx: Any, name: str) -> Any:
        value = inspect.getattr_static(variable.value, name, None)
        if variable.source is None or name.startswith("__") or not _is_constant(value):
            return own(variable, tx, name)
        return VariableTracker.build(tx, value, AttrSource(variable.source, name))

    with mock.patch.object(UserDefinedClassVariable, name_of_method, var_getattr):
        yield


def _is_constant(value: object) -> bool:
    import enum

    if isinstance(value, tuple | frozenset):
        return all(map(_is_constant, value))
    return isinstance(value, bool | int | float | complex | str | bytes | enum.Enum)


def _is_in_place(node: fx.Node) -> bool:
    if "out" in node.kwargs:
        return True
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    is_operator = isinstance(name, str) and name.endswith("_") and not name.endswith("__")
    return node.op in ("call_method", "call_function") and (is_operator or name in ("setitem", "iadd", "imul", "isub"))
