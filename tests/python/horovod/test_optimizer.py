# SPDX-License-Identifier: Apache-2.0
"""Training with agspeed.horovod.torch: DistributedOptimizer compared with DistributedDataParallel, states, batch
norm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from agspeed import native
from tests.python.distributed.ranks import Ranks
from tests.python.horovod import programs

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(request.param) as started:
        yield started


@pytest.mark.smoke
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate": 3},
        {"groups": 2},
        {"listed": True},
        {"without_names": True},
        {"from_state": True},
    ],
    ids=str,
)
def test_weights_have_the_bits_of_ddp(ranks: Ranks, tmp_path: Path, options: dict[str, Any]) -> None:
    accumulate = options.get("accumulate", 1)
    expected = ranks.run(programs.ddp, tmp_path, steps=50, accumulate=accumulate)
    for weights, (found, name) in zip(
        expected, ranks.run(programs.distributed_optimizer, tmp_path, steps=50, **options), strict=True
    ):
        assert name == "SGD"
        torch.testing.assert_close(found, weights, rtol=0, atol=0)


def test_an_average_may_be_divided_in_two_steps(ranks: Ranks, tmp_path: Path) -> None:
    expected = ranks.run(programs.ddp, tmp_path, steps=5)
    found = ranks.run(programs.distributed_optimizer, tmp_path, steps=5, gradient_predivide_factor=2.0)
    torch.testing.assert_close([weights for weights, _ in found], expected)


def test_gradients_can_be_clipped_between_reducing_and_the_step(ranks: Ranks, tmp_path: Path) -> None:
    found = ranks.run(programs.clipped, tmp_path)
    torch.testing.assert_close(found, [found[0]] * ranks.size, rtol=0, atol=0)


def test_models_in_channels_last_are_trained(ranks: Ranks, tmp_path: Path) -> None:
    found = ranks.run(programs.channels_last, tmp_path)
    torch.testing.assert_close(found, [found[0]] * ranks.size, rtol=0, atol=0)


def test_what_a_rank_has_not_computed_counts_as_zeros(ranks: Ranks, tmp_path: Path) -> None:
    torch.manual_seed(0)
    before = [parameter for _ in range(ranks.size) for parameter in nn.Linear(3, 3).parameters()]
    for found in ranks.run(programs.parts_that_rest, tmp_path):
        for old, new in zip(before, found, strict=True):
            torch.testing.assert_close(new, old.detach() - 3 * 2.0 / ranks.size)


def test_sparse_gradients_are_reduced_as_dense_ones_are(ranks: Ranks, tmp_path: Path) -> None:
    sparse = ranks.run(programs.sparse_embedding, tmp_path, sparse_as_dense=False)
    dense = ranks.run(programs.sparse_embedding, tmp_path, sparse_as_dense=True)
    torch.testing.assert_close(sparse, [sparse[0]] * ranks.size)
    torch.testing.assert_close(dense, sparse)


def test_wrong_optimizers_say_why(ranks: Ranks, tmp_path: Path) -> None:
    words = {
        "names": "ValueError: Parameter names in named_parameters must be unique. Found duplicates: a",
        "missing": "ValueError: named_parameters was specified, but one or more model parameters were not named.",
        "tuples": "ValueError: named_parameters should be a sequence of tuples (name, parameter)",
        "divide": "ValueError: gradient_predivide_factor not supported with op != Average",
        "groups": "ValueError: groups should be a positive integer",
        "twice": "ValueError: A parameter can only appear once in groups.",
        "params": "ValueError: invalid params of type",
        "LBFGS": "ValueError: cannot broadcast torch.optim.LBFGS state",
        "cleared": "AssertionError: optimizer.zero_grad() was called after loss.backward() but before optimizer.step()",
        "backwards": "AssertionError: Gradients were computed more than backward_passes_per_step times before call to",
        "warned": "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize()",
    }
    for found in ranks.run(programs.wrong_optimizers, tmp_path):
        assert found.keys() == words.keys()
        for name, text in words.items():
            assert found[name].startswith(text), name


def test_state_and_options_of_the_root_reach_ranks_that_have_none(ranks: Ranks, tmp_path: Path) -> None:
    answers = ranks.run(programs.adam_state_of_rank_zero, tmp_path)
    assert len(answers[0][0]) > 0
    for tensors, options in answers:
        torch.testing.assert_close(tensors, answers[0][0], rtol=0, atol=0)
        assert options == answers[0][1] == [(0.01, (0.8, 0.9))]


def test_batch_norm_by_the_batches_of_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    result, gradient, mean, variance = programs.whole_batch_norm(ranks.size)
    for rank, found in enumerate(ranks.run(programs.batch_norm, tmp_path)):
        rows = slice(3 * rank, 3 * rank + 3)
        torch.testing.assert_close(found, (result[rows], gradient[rows], mean, variance), rtol=1e-6, atol=1e-6)
