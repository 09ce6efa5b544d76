# SPDX-License-Identifier: Apache-2.0
"""YAML that agspeed writes is read back as the same data by another reader."""

from __future__ import annotations

import random
from typing import Any

import yaml

from agspeed.cluster import yaml_text

_PIECES = (
    *"aZ0 9-:#'\"[]{},&*!|>%@`~.=/\\+_?",
    "yes",
    "null",
    "1e3",
    "0o7",
    "12:30",
    "2024-01-01",
    "é",
    "😀",
    "<<",
    "---",
)


def made(numbers: random.Random, depth: int) -> Any:
    """Returns random data, of mappings, lists, texts, whole numbers and booleans."""
    kind = numbers.randrange(6 if depth else 4)
    if kind == 4:
        return [made(numbers, depth - 1) for _ in range(numbers.randrange(4))]
    if kind == 5:
        return {text(numbers): made(numbers, depth - 1) for _ in range(numbers.randrange(4))}
    return (text(numbers), text(numbers), numbers.randrange(-9, 9), numbers.random() < 0.5)[kind]


def text(numbers: random.Random) -> str:
    return "".join(numbers.choice(_PIECES) for _ in range(numbers.randrange(5)))


def test_random_data_is_read_back() -> None:
    for seed in range(500):
        numbers = random.Random(seed)
        data = {"a": made(numbers, 3), "b": made(numbers, 3)}
        written = yaml_text.documents([data])
        assert yaml.safe_load(written) == data, f"seed {seed}:\n{written}"


def test_several_documents_are_read_back_below_a_comment() -> None:
    written = yaml_text.documents([{"a": 1}, {"b": []}], ["a line", ""])
    assert written.startswith("# a line\n#\na: 1\n---\n")
    assert list(yaml.safe_load_all(written)) == [{"a": 1}, {"b": []}]
