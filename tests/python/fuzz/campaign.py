# SPDX-License-Identifier: Apache-2.0
"""Checks many seeds in a row: even seeds with static shapes, odd seeds with a symbolic batch size. Counts results."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from tests.python.fuzz.differential import Result, check, compile_with, shrink
from tests.python.fuzz.programs import generate


@dataclass
class Tally:
    """The counts of a campaign. A failure holds the seed, the problem and the shrunk program as text."""

    graphs: int = 0
    exact: int = 0
    unsupported: int = 0
    operators: int = 0
    native_operators: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.graphs += 1
        self.exact += result.exact
        self.unsupported += result.unsupported is not None
        self.operators += result.operators
        self.native_operators += result.native_operators

    def __add__(self, other: Tally) -> Tally:
        counts = {key: getattr(self, key) + getattr(other, key) for key in self.__dataclass_fields__}
        return Tally(**counts)

    def __str__(self) -> str:
        return (
            f"{self.graphs} graphs, {len(self.failures)} wrong, {self.exact} compared bit for bit, "
            f"{self.unsupported} refused, {self.native_operators} operators of {self.operators} steps compiled"
        )


def run_campaign(backend: str, first_seed: int, count: int) -> Tally:
    """Checks `count` graphs, with seeds from `first_seed` on. Shrinks failures before it records them."""
    compiler, tally = compile_with(backend), Tally()
    for seed in range(first_seed, first_seed + count):
        program, dynamic = generate(seed), bool(seed % 2)
        result = check(program, compiler, dynamic=dynamic)
        tally.add(result)
        if result.problem is not None:
            small = shrink(program, lambda p, d=dynamic: check(p, compiler, dynamic=d).problem is not None)
            kind = "a symbolic batch" if dynamic else "static shapes"
            tally.failures.append(f"seed {seed}, {kind}: {result.problem}\n{small}")
        if seed % 50 == 0:
            torch._dynamo.reset()
    return tally
