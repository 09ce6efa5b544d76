# SPDX-License-Identifier: Apache-2.0
"""Parameters of tests of which `make test` runs a part: one variant of each case, or the first cases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

_Parameter = type(pytest.param())


def pairs(cases: Sequence[Any], variants: Sequence[Any], first: int = 0) -> list[Any]:
    """Returns parameters (case, variant). One variant of each case always runs, the next case's is the next one. The
    others are `thorough`.

    Args:
        cases: values, or parameters of one value. All variants of a `thorough` one are thorough.
        first: the index of the first case's variant.
    """
    found = []
    for at, case in enumerate(cases):
        is_parameter = isinstance(case, _Parameter)
        value = case.values[0] if is_parameter else case
        for number, variant in enumerate(variants):
            runs = number == (first + at) % len(variants) and not is_parameter
            name = "-".join(getattr(each, "__name__", str(each)) for each in (value, variant))
            found.append(pytest.param(value, variant, marks=[] if runs else pytest.mark.thorough, id=name))
    return found


def first_of(cases: Iterable[Any], count: int) -> list[Any]:
    """Returns the cases as parameters. All but the first `count` are `thorough`. A tuple is a set of values."""
    return [
        case if at < count else thorough(*case) if isinstance(case, tuple) else thorough(case)
        for at, case in enumerate(cases)
    ]


def every(step: int, cases: Sequence[Any], first: int = 0) -> list[Any]:
    """Returns the cases as parameters. All but every `step`-th, from `first` on, are `thorough`."""
    return [case if at % step == first % step else thorough(case) for at, case in enumerate(cases)]


def thorough(*values: Any) -> Any:
    """Returns a parameter, or a set of them, that `make test` leaves out."""
    return pytest.param(*values, marks=pytest.mark.thorough)
