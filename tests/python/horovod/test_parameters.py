# SPDX-License-Identifier: Apache-2.0
"""Parameters that are added and removed after the wrap, and gradients that are sparse or missing on some ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import agspeed.horovod.torch as hvd
from agspeed import native
from tests.python.distributed.ranks import Ranks
from tests.python.horovod import parameter_programs

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(2) as started:
        yield started


def check_weights(ranks: Ranks, folder: Path, expected: dict[str, Any], **options: Any) -> None:
    by_ddp = ranks.run(parameter_programs.changed, folder, by_ddp=True, **expected)
    found = ranks.run(parameter_programs.changed, folder, by_ddp=False, **options)
    torch.testing.assert_close(found, by_ddp, rtol=0, atol=0)


@pytest.mark.parametrize(
    "options", [{}, {"of_inner": True}, {"without_names": True}, {"groups": 2}], ids=lambda each: str(each) or "named"
)
@pytest.mark.parametrize("change", parameter_programs.CHANGES)
def test_parameters_that_change_between_two_steps_are_trained_as_by_ddp(
    ranks: Ranks, tmp_path: Path, change: str, options: dict[str, Any]
) -> None:
    check_weights(ranks, tmp_path, {"change": change}, change=change, **options)


@pytest.mark.parametrize("change", ["add a group", "append"])
def test_parameters_may_be_added_between_two_backwards_of_a_step(ranks: Ranks, tmp_path: Path, change: str) -> None:
    expected = {"change": change, "when": "accumulating"}
    check_weights(ranks, tmp_path, expected, **expected)


def test_gradients_are_summed_up_once_in_the_step_that_sees_a_change(ranks: Ranks, tmp_path: Path) -> None:
    expected = {"change": "append", "scale": float(ranks.size)}
    check_weights(ranks, tmp_path, expected, change="append", op=hvd.Sum)


def test_changes_while_gradients_are_reduced_are_refused_and_training_goes_on(ranks: Ranks, tmp_path: Path) -> None:
    answers = ranks.run(parameter_programs.changed_too_late, tmp_path)
    for texts, weights in answers:
        for text in texts:
            assert text.startswith("UserError: the parameters of an optimizer may not change while their gradients are")
        torch.testing.assert_close(weights, answers[0][1], rtol=0, atol=0)


def test_adasum_joins_the_steps_of_parameters_that_came_later(ranks: Ranks, tmp_path: Path) -> None:
    answers = ranks.run(parameter_programs.changed_with_adasum, tmp_path)
    torch.testing.assert_close(answers, [answers[0]] * ranks.size, rtol=0, atol=0)


@pytest.mark.parametrize("by", ["average", "sum", "compressed", "as dense", "grouped"])
def test_sparse_gradients_that_some_ranks_did_not_compute_count_as_zeros(ranks: Ranks, tmp_path: Path, by: str) -> None:
    dense = ranks.run(parameter_programs.tables, tmp_path, is_sparse=False, by=by)
    sparse = ranks.run(parameter_programs.tables, tmp_path, is_sparse=True, by=by)
    torch.testing.assert_close(sparse, [sparse[0]] * ranks.size, rtol=0, atol=0)
    torch.testing.assert_close(sparse, dense)


def test_sparse_gradients_are_not_compressed(ranks: Ranks, tmp_path: Path) -> None:
    exact = ranks.run(parameter_programs.tables, tmp_path, is_sparse=True)
    found = ranks.run(parameter_programs.tables, tmp_path, is_sparse=True, by="half")
    torch.testing.assert_close(found, exact, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("sparse_ranks", [[0], [1], [0, 1]], ids=str)
def test_gradients_that_are_sparse_at_some_ranks_only_are_reduced(
    ranks: Ranks, tmp_path: Path, sparse_ranks: list[int]
) -> None:
    dense = ranks.run(parameter_programs.layouts_that_differ, tmp_path, sparse_ranks=[])
    found = ranks.run(parameter_programs.layouts_that_differ, tmp_path, sparse_ranks=sparse_ranks)
    torch.testing.assert_close(found, dense)


def test_sparse_gradients_can_only_be_summed_up(ranks: Ranks, tmp_path: Path) -> None:
    for text in ranks.run(parameter_programs.sparse_gradients_by, tmp_path, op=hvd.Max):
        assert text.startswith("ValueError: sparse gradients, as that of 'allreduce.noname.0.0', can only be summed up")


def test_a_parameter_whose_name_is_under_way_is_the_callers_fault(ranks: Ranks, tmp_path: Path) -> None:
    first, other = ranks.run(parameter_programs.name_in_use, tmp_path)
    assert first.startswith("ValueError: Requested")
    assert other == "nothing"
