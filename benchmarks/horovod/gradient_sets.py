# SPDX-License-Identifier: Apache-2.0
"""Reads gradient_sets.toml: sizes of the gradients of published models, and each layer's share of the compute."""

import math
import tomllib
from pathlib import Path

Layers = list[tuple[list[int], float]]
"""For each layer, in order of the forward pass: the bytes of each parameter as float32, and its share of the
compute."""


def names() -> list[str]:
    return list(_tables())


def load(name: str) -> Layers:
    """Returns the layers of a set. Raises ValueError if no set has that name."""
    rows = _rows(name)
    total = math.fsum(float(share) for share, *_ in rows)
    sizes = [[4 * math.prod(shape) for shape in layer] for layer in shapes(name)]
    return [(layer, float(share) / total) for layer, (share, *_) in zip(sizes, rows, strict=True)]


def shapes(name: str) -> list[list[tuple[int, ...]]]:
    """Returns the shapes of each layer's parameters. Raises ValueError if no set has that name."""
    return [[tuple(map(int, shape.split("x"))) for shape in layer] for _, *layer in _rows(name)]


def num_bytes(layers: Layers) -> int:
    return sum(sum(sizes) for sizes, _ in layers)


def _rows(name: str) -> list[list[str]]:
    if name not in (tables := _tables()):
        raise ValueError(f"unknown gradient set {name!r}; known: {', '.join(tables)}")
    return [line.split() for line in tables[name]["layers"].strip().splitlines()]


def _tables() -> dict[str, dict[str, str]]:
    path = Path(__file__).parent / "gradient_sets.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))
