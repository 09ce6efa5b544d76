# SPDX-License-Identifier: Apache-2.0
"""Reports are files that anyone may have written. Each is refused with a sentence, or every reader accepts it."""

from __future__ import annotations

import copy
import json
import os
import random
import secrets
from typing import Any

import pytest

from agspeed.errors import UserError
from agspeed.reporting import compare, model
from tests.python.reporting import report_sample

ROUNDS = 80
STRANGE = (None, True, -1, 0, 2**63, 1e308, "", "x" * 3000, "native+rX:native", "\x1b[31m", [], {}, [[]], {"a": []})


def places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Returns every (container, key) of a JSON value."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        found.append((value, key))
        if isinstance(inner, dict | list):
            places(inner, found)
    return found


def spoiled(data: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Returns the data with some values replaced, removed or moved to another place."""
    data = copy.deepcopy(data)
    for _ in range(chance.randint(1, 3)):
        holder, key = chance.choice(places(data, []))
        match chance.randrange(3):
            case 0:
                holder[key] = copy.deepcopy(chance.choice(STRANGE))
            case 1:
                del holder[key]
            case _:
                other, there = chance.choice(places(data, []))
                holder[key] = copy.deepcopy(other[there])
    return data


@pytest.mark.slow
def test_spoiled_reports_are_refused_or_read_by_everything(tmp_path) -> None:
    seed = secrets.randbits(32)
    chance = random.Random(seed)
    good = report_sample.report()
    path = tmp_path / "report.json"
    num_read = 0
    for number in range(ROUNDS):
        path.write_text(json.dumps(spoiled(good, chance)))
        try:
            found = model.load(path)
            num_read += 1
            assert str(found) and found._repr_html_(), f"seed {seed}, round {number}"
            compare.view(good, found.to_dict())
        except UserError as error:
            assert str(error), f"seed {seed}, round {number}"
        except Exception as error:
            raise AssertionError(f"seed {seed}, round {number}: {path.read_text()[:2000]}") from error
    assert 0 < num_read < ROUNDS, f"seed {seed}"


def test_spoiled_bytes_are_refused_or_read(tmp_path) -> None:
    seed = secrets.randbits(32)
    chance = random.Random(seed)
    good = json.dumps(report_sample.report()).encode()
    path = tmp_path / "report.json"
    for number in range(ROUNDS):
        data = bytearray(good)
        for _ in range(chance.randint(1, 5)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data[: chance.randrange(len(data))] if number % 3 == 0 else data)
        try:
            model.load(path)
        except UserError as error:
            assert str(path) in str(error), f"seed {seed}, round {number}"


@pytest.mark.parametrize(
    "text", ["[" * 300_000, '{"kind":"agspeed.report","schema_version":1,"regions":7,"timeline":{"step":[1]}}', "1e999"]
)
def test_what_would_end_a_reader_is_refused(tmp_path, text) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(UserError):
        model.load(tmp_path / "report.json")


def test_a_file_of_terabytes_is_not_read(tmp_path) -> None:
    path = tmp_path / "report.json"
    path.touch()
    os.truncate(path, 2 << 40)
    with pytest.raises(UserError, match="larger than a report may be"):
        model.load(path)
