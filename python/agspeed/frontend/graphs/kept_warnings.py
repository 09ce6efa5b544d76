# SPDX-License-Identifier: Apache-2.0
"""Warnings of torch's own functions, given in each call as eager gives them.

Dynamo keeps a function such as ``torch.nn.functional.mse_loss`` as one call of the graph. It warns in Python about
sizes that differ. Compiled code computes what the function computes and leaves its Python out. With ``-W error`` eager
would raise there. All calls of a graph have inputs for which the function decides alike, by Dynamo's guards.
"""

from __future__ import annotations

import contextlib
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import fx

__all__ = ["KeptWarning", "kept_warnings", "warning_first", "without_warnings"]

_WARN = frozenset({"warnings", "_get_softmax_dim"})
"""Names in the code of functions of torch that may warn."""


class KeptWarning(NamedTuple):
    text: str
    category: type[Warning]
    path: str
    line: int
    """The user's call of the function."""


def kept_warnings(gm: fx.GraphModule) -> list[KeptWarning]:
    """The warnings of the graph's functions for its example inputs, in order. Tracing thread; the filters of warnings
    are replaced for a moment."""
    found = []
    for node in gm.graph.nodes:
        if node.op != "call_function" or not _may_warn(node.target):
            continue
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: each.meta.get("example_value"))
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            try:
                node.target(*args, **kwargs)
            except Exception:
                continue  # no example values: the graph's first run shows what is wrong
        called = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
        path, line = called[-1] if called else ("<unknown>", "1")
        found += [KeptWarning(str(each.message), each.category, path, int(line)) for each in given]
    return found


def warning_first(target: Callable[..., Sequence[Any]], kept: Sequence[KeptWarning]) -> Callable[..., Sequence[Any]]:
    """`target`, which gives the warnings before it runs, as often as Python's filters say."""
    registries = {each.path: _registry(each.path) for each in kept}

    def run(*args: Any) -> Sequence[Any]:
        for each in kept:
            warnings.warn_explicit(each.text, each.category, each.path, each.line, registry=registries[each.path])
        return target(*args)

    return run


@contextlib.contextmanager
def without_warnings(kept: Sequence[KeptWarning]) -> Iterator[None]:
    """A block in which a graph that has `kept` warnings gives none."""
    if not kept:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _may_warn(function: Any) -> bool:
    return isinstance(function, types.FunctionType) and not _WARN.isdisjoint(function.__code__.co_names)


def _registry(path: str) -> dict[Any, Any]:
    """The list of warnings already given by a module, so that eager's and these count as one."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == path:
            return vars(module).setdefault("__warningregistry__", {})  # type: ignore[no-any-return]
    return {}
