# SPDX-License-Identifier: Apache-2.0
"""Writes plain data as YAML: mappings, lists, texts, whole numbers and booleans. Pure.

Texts are written plainly if YAML 1.1 and 1.2 read them as texts, else as JSON texts, which are YAML as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["documents"]

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./@+=-]*(?::[A-Za-z0-9_./@+=-]+)*")
_WORDS_OF_YAML = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))


def documents(objects: Iterable[Mapping[str, Any]], comment: Sequence[str] = ()) -> str:
    """Returns a YAML stream with one document per object. comment: lines at its top."""
    texts = ["\n".join(_lines(each)) + "\n" for each in objects]
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment)
    return head + "---\n".join(texts)


def _lines(value: Mapping[str, Any] | Sequence[Any]) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _entry(f"{_scalar(key)}:", below, " ")
    else:
        for below in value:
            yield from _item(below)


def _entry(head: str, below: Any, space: str) -> Iterator[str]:
    if isinstance(below, (Mapping, list, tuple)) and below:
        yield head
        indent = "" if isinstance(below, (list, tuple)) else "  "
        yield from (f"{indent}{line}" for line in _lines(below))
    else:
        yield f"{head}{space}{_scalar(below)}"


def _item(below: Any) -> Iterator[str]:
    """An entry of a list: the lines of a mapping or list begin behind the dash."""
    if isinstance(below, (Mapping, list, tuple)) and below:
        first, *rest = _lines(below)
        yield f"- {first}"
        yield from (f"  {line}" for line in rest)
    else:
        yield f"- {_scalar(below)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS_OF_YAML
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, (Mapping, list, tuple)):
        return "{}" if isinstance(value, Mapping) else "[]"
    assert isinstance(value, int), f"{value!r} has no form in YAML here"
    return json.dumps(value)
