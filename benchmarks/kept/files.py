# SPDX-License-Identifier: Apache-2.0
"""Reads and checks the JSON files of `benchmarks/results` (kept.schema.json), and writes kept results.

Every fault of a file is a ValueError whose sentence names the file and the field.
"""

import datetime
import functools
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
from jsonschema.exceptions import best_match

from benchmarks import cases

ROOT = Path(__file__).resolve().parents[2]
_BENCHMARKS = Path(__file__).resolve().parents[1]


def read_result(path: Path) -> dict[str, Any]:
    """Reads what is kept of one case on one machine."""
    return checked_result(_read(path), shown(path))


def read_table(path: Path) -> dict[str, Any]:
    """Reads a table.json: columns, rows, and the notes that stand with the table."""
    found = _read(path)
    _validate(found, _validator("kept.schema.json", "table"), shown(path))
    return found  # type: ignore[no-any-return]


def checked_result(data: Any, where: str) -> dict[str, Any]:
    """Returns `data` if it is a kept result. `where` names it in an error."""
    _validate(data, _validator("kept.schema.json", "result"), where)
    if "case" in data and data["case"] not in _known_cases():
        raise ValueError(f"{where}: case is {data['case']!r}, and benchmarks/cases has no such case")
    try:
        datetime.date.fromisoformat(data["date"])
    except ValueError as error:
        raise ValueError(f"{where}: date is {data['date']!r}, which is no date like 2026-11-27") from error
    if "samples" in data:
        _validate(data["samples"], _validator("result.schema.json", "cell"), f"{where}: samples")
    return data  # type: ignore[no-any-return]


def stem(case: str) -> str:
    """The name of the file of a case or program, without .json. A second machine or date adds a dot and a word."""
    return case.replace("/", "-").replace(".", "-")


def text_of(result: dict[str, Any]) -> str:
    """A kept result as JSON, with one field or row in a line."""
    fields = []
    for key, value in result.items():
        if key == "rows":
            shown_rows = ",\n    ".join(json.dumps(row, ensure_ascii=False) for row in value)
            fields.append(f'"rows": [\n    {shown_rows}\n  ]')
        else:
            fields.append(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n  " + ",\n  ".join(fields) + "\n}\n"


def shown(path: Path) -> str:
    """The path in messages: relative to the repository where it lies in it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{shown(path)} cannot be read: {error.strerror}") from error
    except ValueError as error:  # of JSON, or of UTF-8
        raise ValueError(f"{shown(path)} is not JSON: {error}") from error


def _numbers(value: Any, field: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], float]]:
    if isinstance(value, float):
        yield field, value
    elif isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _numbers(each, (*field, key))


def _validate(data: Any, validator: Any, where: str) -> None:
    for field, value in _numbers(data, ()):
        if not math.isfinite(value):
            raise ValueError(f"{where}: {_named(field)} is {value}, which is not a finite number")
    error = best_match(validator.iter_errors(data))
    if error is not None:
        field = _named(error.absolute_path)
        raise ValueError(f"{where}: {field + ': ' if field else ''}{error.message}")


def _named(field: Iterable[str | int]) -> str:
    """rows, 0, agspeed -> rows[0].agspeed"""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in field).lstrip(".")


@functools.cache
def _validator(schema: str, definition: str) -> Any:
    definitions = json.loads((_BENCHMARKS / schema).read_text(encoding="utf-8"))["$defs"]
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{definition}", "$defs": definitions})


@functools.cache
def _known_cases() -> frozenset[str]:
    return frozenset(case["name"] for case in cases.load())
