# SPDX-License-Identifier: Apache-2.0
"""States that several objects share, the root's state on all ranks, and objects that cannot be sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agspeed import native
from tests.python.distributed.ranks import Ranks
from tests.python.horovod import state_programs

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(2) as started:
        yield started


@pytest.mark.parametrize("way", state_programs.REPLACE)
def test_a_wrapped_optimizer_shares_groups_and_state_with_the_one_it_was_made_of(
    ranks: Ranks, tmp_path: Path, way: str
) -> None:
    answers = ranks.run(state_programs.scheduler_made_before, tmp_path, way=way)
    for found in answers:
        assert found["lr"] == [0.0625, 0.0625]
        torch.testing.assert_close(found["momentum"][0], found["momentum"][1], rtol=0, atol=0)
        torch.testing.assert_close(found["weights"], answers[0]["weights"], rtol=0, atol=0)


def test_hooks_of_a_step_run_once_after_a_state_is_loaded(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(state_programs.hooks_after_load, tmp_path) == [1, 1]


def test_a_wrapped_optimizer_is_neither_copied_nor_wrapped_again(ranks: Ranks, tmp_path: Path) -> None:
    for copied, pickled, wrapped, inner in ranks.run(state_programs.copies, tmp_path):
        assert copied == pickled
        assert copied.startswith("UserTypeError: a SGD that hvd.DistributedOptimizer() has wrapped cannot be copied")
        assert wrapped.startswith("UserError: this optimizer was returned by hvd.DistributedOptimizer()")
        assert inner == "nothing"


def test_every_parameter_has_a_name_of_its_own(ranks: Ranks, tmp_path: Path) -> None:
    for before, after in ranks.run(state_programs.names, tmp_path):
        assert before == [f"allreduce.noname.{group}.{at}" for group in (0, 1) for at in (0, 1)]
        assert after == ["allreduce.added.0", *before[1:]]


def test_state_keeps_the_roots_type_whatever_the_parameters_is(ranks: Ranks, tmp_path: Path) -> None:
    for found in ranks.run(state_programs.broadcast_state_of_another_type, tmp_path):
        torch.testing.assert_close(found, [torch.full((2, 3), 1.001), torch.full((2,), 1.001)], rtol=0, atol=0)


def test_state_that_is_restored_keeps_its_type_whatever_the_parameters_is(ranks: Ranks, tmp_path: Path) -> None:
    for rank, found in enumerate(ranks.run(state_programs.restore_state_of_another_type, tmp_path)):
        expected = [torch.full(shape, 1.001 + rank) for shape in ((2, 3), (2,))]
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_the_roots_state_is_put_into_the_tensors_that_are_there(ranks: Ranks, tmp_path: Path) -> None:
    answers = ranks.run(state_programs.broadcast_into_what_is_held, tmp_path)
    assert not torch.equal(answers[0]["before"][1], answers[1]["before"][1])
    for found in answers:
        assert found["is same"]
        torch.testing.assert_close(found["held"], answers[0]["before"], rtol=0, atol=0)
        torch.testing.assert_close(found["rate"], torch.tensor(0.5), rtol=0, atol=0)
        assert found["bias"] == {}


def test_an_optimizer_without_state_has_gradients_of_zeros_after_a_broadcast(ranks: Ranks, tmp_path: Path) -> None:
    for found in ranks.run(state_programs.fresh_optimizer, tmp_path):
        torch.testing.assert_close(found["gradient"], torch.zeros(2, 3))
        assert (found["frozen"], found["is sparse"], found["lr"]) == (None, True, 0.1)
        torch.testing.assert_close(*found["weights"], rtol=0, atol=0)


def test_a_rank_with_other_groups_says_so_and_the_others_go_on(ranks: Ranks, tmp_path: Path) -> None:
    first, last = ranks.run(state_programs.other_groups, tmp_path)
    assert first == "nothing"
    assert last.startswith(
        "UserError: this rank's optimizer has 2 groups of [1, 1] parameters, and the state it gets is of 1 groups of"
    )


def test_a_model_in_anothers_place_is_restored_and_synchronized(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(state_programs.elastic_model_in_anothers_place, tmp_path) == [(3.0, 3.0)] * 2


def test_what_cannot_be_sent_raises_at_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    own = {
        "object": "UserTypeError: an object of type builtins.object cannot be sent to other ranks",
        "depth": "UserError: an object is nested more than 64 deep",
        "meta": "NotImplementedError: Cannot copy out of meta tensor",
        "other root": "UserTypeError: an object of type builtins.object cannot be sent to other ranks",
        "gathered": "UserTypeError: an object of type builtins.builtin_function_or_method cannot be sent to other",
        "options": "UserTypeError: an object of type builtins.object cannot be sent to other ranks",
        "elastic": "UserTypeError: an object of type builtins.object cannot be sent to other ranks",
    }
    others = {
        "object": "UserTypeError: rank 0 could not send its object to the others in 'broadcast_object': an object",
        "depth": "UserError: rank 0 could not send its object to the others in 'broadcast_object': an object is nested",
        "meta": "HorovodInternalError: rank 0 could not send its object to the others in 'broadcast_object': Cannot",
        "other root": "UserTypeError: rank 1 could not send its object to the others in 'mine': an object of type",
        "gathered": "UserTypeError: rank 1 could not send its object to the others in 'allgather_object': an object of",
        "options": "UserTypeError: rank 0 could not send its object to the others in 'broadcast_optimizer_state': an",
        "elastic": "UserTypeError: rank 0 could not send its object to the others in 'elastic.state': an object",
    }
    for rank, found in enumerate(ranks.run(state_programs.objects_that_cannot_be_sent, tmp_path)):
        assert found.keys() == own.keys()
        for name, text in found.items():
            is_wrong_here = rank == (1 if name in ("other root", "gathered") else 0)
            assert text.startswith((own if is_wrong_here else others)[name]), f"{name} at rank {rank}: {text}"
