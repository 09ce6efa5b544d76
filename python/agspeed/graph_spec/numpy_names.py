# SPDX-License-Identifier: Apache-2.0
"""The names of NumPy's functions in a graph. Dynamo wraps torch's version of each, in a new object every time.

    numpy.sqrt, numpy.linalg.norm    a function
    numpy.method.reshape             a method of an array
    numpy.operator.add               an operator between arrays

Stateless; any thread.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from agspeed.torch_compat import dynamo


def numpy_name(target: Callable[..., Any]) -> str | None:
    """The name of one of Dynamo's wrappers; None for anything else."""
    if not dynamo.is_numpy_wrapper(target):
        return None
    wrapped: Any = getattr(target, "f", None) or getattr(target, "op", None)
    leaf = getattr(target, "method", None) or getattr(wrapped, "__name__", None)
    for name in (f"numpy.{home}{leaf}" for home in ("", "linalg.", "fft.", "method.", "operator.")):
        try:
            found: Any = numpy_function(name)
        except ValueError:
            continue
        if type(found) is type(target) and vars(found) == vars(target):
            return name
    return None


def numpy_function(name: str) -> Callable[..., Any]:
    """Inverse of `numpy_name`. Raises ValueError for a name outside the closed set."""
    numpy: Any = dynamo.numpy_of_torch()
    _, *homes, leaf = name.split(".")
    if homes == ["method"] and callable(getattr(numpy.ndarray, leaf, None)):
        return dynamo.numpy_method_wrapper(leaf)
    if homes == ["operator"] and callable(getattr(operator, leaf, None)):
        return dynamo.numpy_operator_wrapper(getattr(operator, leaf))
    home = {"": numpy, "linalg": numpy.linalg, "fft": numpy.fft}.get(".".join(homes))
    found = getattr(home, leaf, None)
    if not callable(found) or isinstance(found, type) or not dynamo.is_numpy_of_torch(found):
        raise ValueError(f"'{name}' is not a function of NumPy that a graph may call")
    return dynamo.numpy_to_tensor_wrapper(found)
