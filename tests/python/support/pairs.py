# SPDX-License-Identifier: Apache-2.0
"""Pairs of a case and a variant, of which `make test` runs one variant per case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def pairs(cases: Sequence[Any], variants: Sequence[Any], first: int = 0) -> list[Any]:
    """Returns parameters (case, variant). One variant of each case always runs, the next case's is the next one. The
    others are `thorough`.

    first: the index of the first case's variant.
    """
    return [
        pytest.param(
            case,
            variant,
            marks=[] if number == (first + at) % len(variants) else pytest.mark.thorough,
            id="-".join(getattr(value, "__name__", str(value)) for value in (case, variant)),
        )
        for at, case in enumerate(cases)
        for number, variant in enumerate(variants)
    ]
