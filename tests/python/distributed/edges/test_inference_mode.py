# SPDX-License-Identifier: Apache-2.0
"""Operations in inference mode copy their results back on any thread and into tensors of any kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agspeed import native
from tests.python.distributed.edges import programs
from tests.python.distributed.ranks import Ranks

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(2) as started:
        yield started


@pytest.mark.parametrize("end", ["wait", "future", "profile", "outside"])
def test_results_are_those_without_the_mode(ranks: Ranks, tmp_path: Path, end: str) -> None:
    expected = ranks.run(programs.results_of_works, tmp_path, is_inference=False, end="wait")
    for found, without in zip(
        ranks.run(programs.results_of_works, tmp_path, is_inference=True, end=end), expected, strict=True
    ):
        for name, values in found.items():
            assert all(map(torch.equal, values, without[name])), f"{name}: {values} instead of {without[name]}"


def test_tensors_stay_what_they_were_before_the_mode(ranks: Ranks, tmp_path: Path) -> None:
    sum_of_ranks, elements = 1, 12
    assert ranks.run(programs.trained_on_received_values, tmp_path) == [sum_of_ranks * elements] * 2
