# SPDX-License-Identifier: Apache-2.0
"""JSON from strangers: input within the limits of depth and size is read as by `json`; the rest is a ValueError."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agspeed import bounded_json

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(_VALUES, st.booleans())
def test_what_json_writes_is_read_the_same(value, is_ascii) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    assert bounded_json.loads(text) == json.loads(text)


def test_as_deep_as_allowed_and_no_deeper() -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        inner = "0" if opening != "[" else ""
        bounded_json.loads(opening * bounded_json.MAX_DEPTH + inner + closing * bounded_json.MAX_DEPTH)
        with pytest.raises(ValueError, match="more than 100 deep"):
            bounded_json.loads(opening * 101 + inner + closing * 101)


def test_brackets_in_texts_are_text() -> None:
    text = json.dumps({"[" * 500: ['"' + "{" * 500, "\\" + "[" * 500]})
    assert bounded_json.loads(text) == json.loads(text)


@pytest.mark.parametrize(
    "text", ["[" * 1_000_000, '{"a":' * 200_000, "NaN", "-Infinity", "1e999", "9" * 21, "9" * 5000, b"\xff", '"\\', ""]
)
def test_what_could_end_a_process_is_refused(text) -> None:
    with pytest.raises(ValueError):
        bounded_json.loads(text)
