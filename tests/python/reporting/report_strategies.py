# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for whole reports, derived from schema.json itself."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from agspeed.reporting import model

# Names that models and files really have, and names that an attacker would choose.
NASTY = ["", "</script><script>window.hacked=1</script>", '"><img src=x onerror=alert(1)>', "{{7*7}}", "a\0b", "\ud800"]
TEXT = st.one_of(st.sampled_from(NASTY), st.text(max_size=20))
_COLUMNS = ("step", "at_s", "ms", "max_ms", "wait_ms")


def from_schema(part: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Returns values that `part` of the schema allows, by the keywords that schema.json uses."""
    if "$ref" in part:
        return st.deferred(lambda: from_schema(model.schema()["$defs"][part["$ref"].rpartition("/")[2]]))
    if "const" in part:
        return st.just(part["const"])
    if "enum" in part:
        return st.sampled_from(part["enum"])
    if "anyOf" in part:
        return st.one_of(*map(from_schema, part["anyOf"]))
    kinds = part.get("type", "any")
    return st.one_of(*(_of_type(kind, part) for kind in ([kinds] if isinstance(kinds, str) else kinds)))


def _of_type(kind: str, part: dict[str, Any]) -> st.SearchStrategy[Any]:
    if kind == "object" and "properties" in part:
        return st.fixed_dictionaries({name: from_schema(value) for name, value in part["properties"].items()})
    if kind == "object":
        return st.dictionaries(TEXT, from_schema(part["additionalProperties"]), max_size=3)
    if kind == "array":
        return st.lists(from_schema(part["items"]), max_size=3)
    if kind == "integer":
        return st.integers(part.get("minimum", -10), 2**48)
    if kind == "number":
        return _numbers(part)
    if kind == "string":
        return TEXT.filter(lambda text: len(text) >= part.get("minLength", 0))
    return {"boolean": st.booleans(), "null": st.none(), "any": TEXT}[kind]


def _numbers(part: dict[str, Any]) -> st.SearchStrategy[float]:
    if "exclusiveMaximum" in part:
        return st.floats(0.01, 0.99)
    return st.one_of(st.just(0.0), st.floats(part.get("minimum", -1e12), 1e12), st.floats(0, 1e-300))


def _with_equal_columns(report: dict[str, Any]) -> dict[str, Any]:
    timeline = report["timeline"]
    length = min(len(timeline[name]) for name in _COLUMNS)
    return report | {"timeline": timeline | {name: timeline[name][:length] for name in _COLUMNS}}


def reports() -> st.SearchStrategy[dict[str, Any]]:
    """Returns reports that `model.validate` accepts."""
    return from_schema(model.schema()).map(_with_equal_columns)
