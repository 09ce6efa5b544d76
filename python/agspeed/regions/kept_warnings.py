# SPDX-License-Identifier: Apache-2.0
"""Issues the warnings of torch's own Python functions in each call of a graph, as eager does.

Dynamo keeps a function such as ``torch.nn.functional.mse_loss`` as one call in the graph. In eager, its Python code
warns about inputs of different sizes, and with ``-W error`` it raises. Compiled code does not run this Python code.
Dynamo's guards ensure that the function makes the same decision in all calls of a graph.
"""

from __future__ import annotations

import contextlib
import re
import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import fx

from agspeed.backends.base import Runner

__all__ = ["KeptWarning", "kept_warnings", "warning_first", "without_warnings"]

_WARN = frozenset({"warnings", "_get_softmax_dim"})
"""Torch functions whose code uses one of these names may warn."""


class KeptWarning(NamedTuple):
    text: str
    category: type[Warning]
    path: str
    line: int
    """path and line: the place of the user's call of the function."""


def kept_warnings(gm: fx.GraphModule) -> list[KeptWarning]:
    """Returns the warnings of the graph's functions for its example inputs, in order. Call it on the tracing thread. It
    temporarily replaces the process's warning filters."""
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
                continue  # the function fails on the example values: the graph's first run shows the error
        called = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
        path, line = called[-1] if called else ("<unknown>", "1")
        found += [KeptWarning(str(each.message), each.category, path, int(line)) for each in given]
    return found


def warning_first(target: Runner, kept: Sequence[KeptWarning]) -> Runner:
    """Returns `target` with the warnings issued before each run. Python's filters decide how often they are shown."""
    registries = {each.path: _registry(each.path) for each in kept}

    def run(*args: Any) -> Sequence[Any]:
        for each in kept:
            warnings.warn_explicit(each.text, each.category, each.path, each.line, registry=registries[each.path])
        return target(*args)

    return run


@contextlib.contextmanager
def without_warnings(kept: Sequence[KeptWarning]) -> Iterator[None]:
    """Suppresses warnings inside the block, for a graph with `kept` warnings. Does nothing without kept warnings."""
    if not kept:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _may_warn(function: Any) -> bool:
    """Returns whether it is a function of torch that may warn. A user's function is never called here."""
    is_torchs = isinstance(function, types.FunctionType) and function.__module__.startswith("torch.")
    return is_torchs and not _WARN.isdisjoint(function.__code__.co_names)


def _registry(path: str) -> dict[Any, Any]:
    """Returns the module's registry of issued warnings, so that eager's warnings and these count as the same."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == path:
            result: dict[Any, Any] = vars(module).setdefault("__warningregistry__", {})
            return result
    return {}
