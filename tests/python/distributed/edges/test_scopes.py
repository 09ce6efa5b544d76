# SPDX-License-Identifier: Apache-2.0
"""Coalescing scopes: each result arrives, and an exception leaves no state behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agspeed import native
from tests.python.distributed.edges import programs
from tests.python.distributed.ranks import Ranks

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

SIZE = 2


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(SIZE) as started:
        yield started


@pytest.mark.parametrize("position", [0, 1, 2])
def test_collectives_are_right_after_a_batch_that_was_refused(ranks: Ranks, tmp_path: Path, position: int) -> None:
    expected = ranks.run(programs.sums_after_a_refused_batch, tmp_path, "gloo", position=0)
    assert expected == [[3.0 * SIZE, float(SIZE), float(SIZE), 1.0]] * SIZE
    assert ranks.run(programs.sums_after_a_refused_batch, tmp_path, position=position) == expected


@pytest.mark.parametrize("device", [None, programs.CPU], ids=str)
def test_collectives_are_right_after_an_exception_in_a_scope(ranks: Ranks, tmp_path: Path, device: Any) -> None:
    found = ranks.run(programs.sums_after_an_exception_in_a_scope, tmp_path, device=device)
    assert found == [[3.0 * SIZE, float(SIZE), float(SIZE), 1.0]] * SIZE


@pytest.mark.parametrize("is_waited_for", [False, True])
def test_strided_results_arrive_in_a_scope(ranks: Ranks, tmp_path: Path, is_waited_for: bool) -> None:
    found = ranks.run(programs.strided_results_in_a_scope, tmp_path, is_waited_for=is_waited_for)
    for rank, results in enumerate(found):
        source = (rank - 1) % SIZE
        assert [float(each[0, 0]) for each in results] == [source, source + 1, 2, 3]
        assert all(bool((each == each[0, 0]).all()) for each in results)


def test_the_future_of_a_scope_yields_all_results(ranks: Ranks, tmp_path: Path) -> None:
    for value in ranks.run(programs.future_of_a_scope, tmp_path):
        assert all(torch.equal(each, torch.full((3, 4), float(number))) for number, each in enumerate(value))
        assert len(value) == 3
