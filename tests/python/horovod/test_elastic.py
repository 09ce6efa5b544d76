# SPDX-License-Identifier: Apache-2.0
"""hvd.elastic in jobs of constant size: the effect of a failed collective, and the indices of an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agspeed import native
from tests.python.distributed.ranks import Ranks
from tests.python.horovod import programs

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(2) as started:
        yield started


def test_training_goes_on_from_the_last_commit(ranks: Ranks, tmp_path: Path) -> None:
    undisturbed = ranks.run(programs.elastic_training, tmp_path, fail_at=0)
    disturbed = ranks.run(programs.elastic_training, tmp_path, fail_at=7)
    for found in disturbed:
        assert (found["note"], found["resets"], found["failures"]) == ("rank 0", [6], 1)
        torch.testing.assert_close(found["weights"], undisturbed[0]["weights"], rtol=0, atol=0)
    assert undisturbed[1]["resets"] == []


def test_a_failure_that_comes_again_is_raised(ranks: Ranks, tmp_path: Path) -> None:
    for text, num_tries in ranks.run(programs.elastic_failure_that_repeats, tmp_path):
        assert text.startswith("HorovodInternalError: Mismatched ALLREDUCE tensor shapes") and num_tries == 2


def test_every_index_of_an_epoch_is_taken_also_when_it_is_shared_out_again(ranks: Ranks, tmp_path: Path) -> None:
    answers = ranks.run(programs.elastic_sampler, tmp_path)
    order = [index for pair in zip(*(found["first"] for found in answers), strict=True) for index in pair]
    assert sorted(order[:11]) == list(range(11))
    assert order[11] == order[0]
    for found in answers:
        assert found["state"] == {"epoch": 0, "processed_num": 4}
        assert found["length"] == 6
    rest = [index for pair in zip(*(found["rest"] for found in answers), strict=True) for index in pair]
    assert rest[:7] == order[4:11]
    again = {index for found in answers for index in found["next"]}
    assert again == set(range(11)) and answers[0]["next"] != answers[0]["first"]


def test_the_sampler_is_synchronized_with_the_values_that_belong_to_it(ranks: Ranks, tmp_path: Path) -> None:
    """Otherwise the samples of the batch that is made again would be left out."""
    assert ranks.run(programs.elastic_sampler_of_ranks_that_were_interrupted, tmp_path) == [(1, 2), (1, 2)]
