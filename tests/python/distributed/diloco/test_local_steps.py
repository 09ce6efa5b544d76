# SPDX-License-Identifier: Apache-2.0
"""Local steps between real ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from agspeed import distributed, native
from agspeed.errors import UserError
from tests.python.distributed import training
from tests.python.distributed.diloco import local_cases as cases
from tests.python.distributed.ranks import Ranks

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(3, timeout_s=300) as started:
        yield started


def are_equal(found: list[list[torch.Tensor]]) -> bool:
    return all(all(map(torch.equal, each, found[0])) for each in found)


def test_warm_up_steps_have_the_bits_of_ddp(ranks: Ranks, tmp_path: Path) -> None:
    expected = ranks.run(training.ddp, tmp_path, steps=4)
    assert are_equal([*expected, *ranks.run(cases.warm_weights, tmp_path, steps=4)])


def test_averages_of_parameters_after_each_step_are_averages_of_gradients(ranks: Ranks, tmp_path: Path) -> None:
    expected = ranks.run(training.ddp, tmp_path, steps=4)[0]
    found = ranks.run(cases.averaged_each_step, tmp_path, steps=4)
    assert are_equal(found)
    for one, other in zip(found[0], expected, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("compression", ["int8", "none"])
def test_ranks_differ_between_synchronizations_and_are_equal_afterwards(
    ranks: Ranks, tmp_path: Path, compression: str
) -> None:
    options = {"every": 3, "warmup": 2, "compression": compression}
    found = ranks.run(cases.histories, tmp_path, options=options, steps=9, with_statistics=True)
    for step in range(9):
        local = [rank[step]["local"] for rank in found]
        outer = [list(rank[step]["outer"].values()) for rank in found]
        is_equal = step + 1 <= 2 or (step + 1 - 2) % 3 == 0
        assert are_equal(local) == is_equal, step
        assert are_equal(outer), step
        if step + 1 in (5, 8):
            assert are_equal([local[0], outer[0]]), step
            assert are_equal([rank[step]["buffers"] for rank in found]), step
    assert [each["count"] for each in found[0][:9]] == [0, 0, 0, 0, 1, 1, 1, 2, 2]


def test_fragments_take_turns_and_the_last_synchronization_makes_all_equal(ranks: Ranks, tmp_path: Path) -> None:
    options = {"every": 4, "warmup": 1, "fragments": 2}
    found = ranks.run(cases.histories, tmp_path, options=options, steps=10)
    assert [each["count"] for each in found[0][:10]] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    for step in range(10):
        assert are_equal([list(rank[step]["outer"].values()) for rank in found]), step
    assert not are_equal([rank[9]["local"] for rank in found])
    assert are_equal([rank[10]["local"] for rank in found])
    assert are_equal([found[0][10]["local"], found[0][10]["again"]])


@pytest.mark.parametrize("middle", [2, 6])
def test_a_training_continues_from_its_checkpoints(ranks: Ranks, tmp_path: Path, middle: int) -> None:
    options = {"every": 4, "warmup": 3, "fragments": 2}
    for whole, again in ranks.run(cases.resumed, tmp_path, options=options, middle=middle, steps=12):
        assert are_equal([whole, again])


def test_one_rank_s_checkpoint_after_a_synchronization_serves_all(ranks: Ranks, tmp_path: Path) -> None:
    options = {"every": 4, "warmup": 0}
    found = ranks.run(cases.resumed, tmp_path, options=options, middle=6, steps=8, from_first=True)
    assert are_equal([again for _, again in found])


def test_models_and_calls_that_do_not_fit_are_refused_at_every_rank(ranks: Ranks, tmp_path: Path) -> None:
    for found in ranks.run(cases.refused_models, tmp_path):
        assert "UserTypeError: DistributedDataParallel averages gradients in each backward" in found["ddp"]
        assert "model.no_sync()" in found["ddp"]
        assert "UserTypeError: local_steps needs a whole model" in found["fsdp"]
        assert "UserTypeError: local_steps needs a module, and got SGD" in found["no model"]
        assert "UserTypeError: local_steps needs an optimizer of torch, and got Sequential" in found["no optimizer"]
        assert "UserError: the optimizer has 4 parameters that are not in the model" in found["others"]
        assert "UserError: local_steps does not work in an elastic job" in found["elastic"]
        assert "UserError: every=0 is not valid" in found["every"]
        assert "UserError: fragments=3 is not valid: write a number from 1 to every=2" in found["fragments"]
        assert "UserError: compression='topk' is not valid: write one of int8, none" in found["compression"]
        assert "UserError: this SGD has local steps already" in found["twice"]


def test_steps_that_are_not_local_are_refused_at_every_rank(ranks: Ranks, tmp_path: Path) -> None:
    for found in ranks.run(cases.refused_steps, tmp_path):
        assert "UserError: the model is called by a DistributedDataParallel" in found["reduced"]
        assert found["no_sync"] == "nothing was raised"
        assert "UserError: GradScaler skips the steps" in found["scaler"]
        assert "UserError: local_steps takes no closure" in found["closure"]
        assert "UserError: the optimizer's parameters have changed" in found["parameters"]


@pytest.mark.parametrize("third", [{"every": 3, "warmup": 0}, {"every": 0, "warmup": 0}])
def test_options_that_differ_are_named_at_every_rank(ranks: Ranks, tmp_path: Path, third: dict[str, Any]) -> None:
    usual = {"every": 2, "warmup": 0}
    for found in ranks.run(cases.differing, tmp_path, options=[usual, usual, third]):
        assert found.startswith("UserError: the ranks have called local_steps differently (rank 0: Options(every=2,")
        assert f"rank 2: {'Options(every=3' if third['every'] else 'every=0 is not valid'}" in found


def test_nan_at_one_rank_is_an_error_at_every_rank(ranks: Ranks, tmp_path: Path) -> None:
    for error, is_unchanged in ranks.run(cases.with_nan, tmp_path):
        assert error.startswith("UserError: 0.weight or one of 3 other parameters had NaN or infinity at some rank")
        assert "after step 2" in error
        assert is_unchanged


def test_states_that_do_not_fit_are_refused_at_every_rank(ranks: Ranks, tmp_path: Path) -> None:
    for found in ranks.run(cases.wrong_states, tmp_path):
        assert "UserError: this is no state of local steps" in found["foreign"]
        assert "UserError: 0.bias has the shape (256,) here and (3,) in the state" in found["shape"]
        assert "UserError: the ranks load states that do not belong together" in found["steps"]
        assert "UserError: the ranks load states that do not belong together" in found["one rank"]


def test_a_process_without_a_group_is_refused() -> None:
    own = nn.Linear(2, 2)
    with pytest.raises(UserError, match=r"call torch.distributed.init_process_group\(\) first"):
        distributed.local_steps(own, torch.optim.SGD(own.parameters()), every=1, warmup=0)
