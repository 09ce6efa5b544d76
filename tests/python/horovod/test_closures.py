# SPDX-License-Identifier: Apache-2.0
"""Steps that take a closure reach the weights of DistributedDataParallel, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agspeed import native
from tests.python.distributed.ranks import Ranks
from tests.python.horovod import closure_programs

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(2) as started:
        yield started


def check_weights(ranks: Ranks, folder: Path, program: Any, **options: Any) -> None:
    expected = ranks.run(program, folder, by_ddp=True, **options)
    found = ranks.run(program, folder, by_ddp=False, **options)
    torch.testing.assert_close(expected, [expected[0]] * ranks.size, rtol=0, atol=0)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("optimizer", closure_programs.OPTIMIZERS)
def test_weights_have_the_bits_of_ddp(ranks: Ranks, tmp_path: Path, optimizer: str, passes: int) -> None:
    check_weights(ranks, tmp_path, closure_programs.closures, optimizer=optimizer, passes=passes)


@pytest.mark.parametrize("passes", [2, 3])
def test_backwards_may_begin_before_the_closure(ranks: Ranks, tmp_path: Path, passes: int) -> None:
    check_weights(ranks, tmp_path, closure_programs.backwards_before, passes=passes)


def test_gradients_from_before_the_closure_are_reduced_when_the_step_begins(ranks: Ranks, tmp_path: Path) -> None:
    check_weights(ranks, tmp_path, closure_programs.gradients_before_and_within)


@pytest.mark.parametrize("skips", [True, False])
def test_a_closure_may_synchronize_by_itself(ranks: Ranks, tmp_path: Path, skips: bool) -> None:
    check_weights(ranks, tmp_path, closure_programs.clipped_in_the_closure, skips=skips)
