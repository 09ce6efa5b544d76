# SPDX-License-Identifier: Apache-2.0
"""Torch's own ways to train on several ranks give the same results over the backend "agspeed" and over Gloo."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agspeed import native
from tests.python.distributed import training
from tests.python.distributed.ranks import Ranks

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(request.param) as started:
        yield started


def assert_as_over_gloo(ranks: Ranks, folder: Path, program: Any, tolerance: float = 1e-5, **arguments: Any) -> None:
    """Results are bit-equal if two ranks leave only one order of summation, and equal within rounding otherwise."""
    found = ranks.run(program, folder, **arguments)
    expected = ranks.run(program, folder, "gloo", **arguments)
    is_exact = ranks.size == 2 or tolerance == 0
    allowed = 0.0 if is_exact else tolerance
    torch.testing.assert_close(found, expected, rtol=allowed, atol=allowed)


@pytest.mark.slow
@pytest.mark.smoke
@pytest.mark.parametrize("hook", ["bf16", "fp16", "powerSGD"])
def test_ddp_with_communication_hooks(ranks: Ranks, tmp_path: Path, hook: str) -> None:
    tolerance = {"bf16": 2e-2, "fp16": 2e-3}.get(hook, 1e-4)
    assert_as_over_gloo(ranks, tmp_path, training.ddp_with_hook, tolerance, hook=hook)


def test_ddp_that_accumulates_without_exchange(ranks: Ranks, tmp_path: Path) -> None:
    assert_as_over_gloo(ranks, tmp_path, training.ddp_accumulating)


@pytest.mark.parametrize("sharded_optimizer", [False, True])
def test_ddp_joins_ranks_that_have_more_batches(ranks: Ranks, tmp_path: Path, sharded_optimizer: bool) -> None:
    arguments = {"sharded_optimizer": sharded_optimizer}
    assert_as_over_gloo(ranks, tmp_path, training.ddp_with_uneven_inputs, **arguments)


def test_ddp_with_sparse_gradients(ranks: Ranks, tmp_path: Path) -> None:
    assert_as_over_gloo(ranks, tmp_path, training.ddp_with_sparse_embedding)


def test_sparse_tensors_are_summed_up(ranks: Ranks, tmp_path: Path) -> None:
    assert_as_over_gloo(ranks, tmp_path, training.sparse_sums)


def test_sparse_sums_run_beside_other_operations(ranks: Ranks, tmp_path: Path) -> None:
    total = ranks.size * (ranks.size + 1) / 2
    for found in ranks.run(training.sparse_sums_beside_others, tmp_path):
        assert found == [(total, total)] * 20


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sizes", "sparse dimensions do not match: rank"),
        ("operation", "ValueError: agspeed: unsupported reduction operation"),
    ],
)
def test_sparse_sums_that_cannot_be_say_why_at_every_rank(ranks: Ranks, tmp_path: Path, name: str, words: str) -> None:
    for message in ranks.run(training.wrong_sparse_sum, tmp_path, name=name):
        assert words in message


FSDP_OPTIONS: list[dict[str, Any]] = [
    {},
    {"reshard_after_forward": False, "accumulate": True},
    {"hybrid": True},
    {"precision": "bfloat16"},
]


@pytest.mark.parametrize("options", FSDP_OPTIONS, ids=str)
def test_fully_sharded_training(ranks: Ranks, tmp_path: Path, options: dict[str, Any]) -> None:
    tolerance = 2e-2 if "precision" in options else 1e-5
    assert_as_over_gloo(ranks, tmp_path, training.fsdp, tolerance, **options)


def test_fully_sharded_training_equals_ddp(ranks: Ranks, tmp_path: Path) -> None:
    sharded = ranks.run(training.fsdp_with_factor, tmp_path, factor=float(ranks.size))
    expected = ranks.run(training.ddp, tmp_path, "gloo", steps=3)
    torch.testing.assert_close(sharded, expected, rtol=1e-5, atol=1e-6)


def test_gradients_are_divided_by_any_factor(ranks: Ranks, tmp_path: Path) -> None:
    """A factor of one sums the gradients; torch passes the factor to the backend as a premultiplied sum."""
    found = ranks.run(training.fsdp_with_factor, tmp_path, factor=1.0)
    expected = ranks.run(training.ddp, tmp_path, "gloo", steps=3, scale=float(ranks.size))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_tensor_parallel_layers(ranks: Ranks, tmp_path: Path) -> None:
    assert_as_over_gloo(ranks, tmp_path, training.tensor_parallel)


@pytest.mark.parametrize("shape", [(8, 8), (5, 3), (1, 9)], ids=str)
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("rows", "columns"),
        ("columns", "everywhere"),
        ("everywhere", "rows"),
        ("sum", "rows"),
        ("sum", "columns"),
        ("sum", "everywhere"),
        ("average", "everywhere"),
        ("maximum", "everywhere"),
    ],
)
def test_tensors_change_their_placement(
    ranks: Ranks, tmp_path: Path, source: str, target: str, shape: tuple[int, int]
) -> None:
    arguments = {"source": source, "target": target, "rows": shape[0], "columns": shape[1]}
    whole = torch.arange(shape[0] * shape[1], dtype=torch.float32).reshape(shape)
    others = range(ranks.size)
    expected = {
        "sum": whole * ranks.size + sum(others),
        "average": whole + sum(others) / ranks.size,
        "maximum": whole + ranks.size - 1,
    }.get(source, whole)
    for found in ranks.run(training.redistributed, tmp_path, **arguments):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_sharded_matrices_are_multiplied(ranks: Ranks, tmp_path: Path) -> None:
    assert_as_over_gloo(ranks, tmp_path, training.multiplied)


@pytest.mark.parametrize("in_background", [False, True])
def test_checkpoints_are_saved_and_loaded_with_another_sharding(
    ranks: Ranks, tmp_path: Path, in_background: bool
) -> None:
    arguments = {"folder": tmp_path, "in_background": in_background}
    assert ranks.run(training.saved_and_loaded, tmp_path, **arguments) == [True] * ranks.size


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_pipelines(ranks: Ranks, tmp_path: Path, schedule: str) -> None:
    assert_as_over_gloo(ranks, tmp_path, training.pipeline, tolerance=0, schedule=schedule)


@pytest.mark.parametrize("count", [1, 40000])
def test_batches_of_sends_and_receives(ranks: Ranks, tmp_path: Path, count: int) -> None:
    for rank, found in enumerate(ranks.run(training.exchanged_with_neighbours, tmp_path, count=count)):
        left, right = (rank - 1) % ranks.size, (rank + 1) % ranks.size
        expected = []
        for round_ in range(3):
            expected.append(torch.full((count + left,), float(left + round_)))
            expected.append(torch.full((count + right,), float(right), dtype=torch.bfloat16))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
