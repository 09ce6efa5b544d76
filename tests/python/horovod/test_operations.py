# SPDX-License-Identifier: Apache-2.0
"""The operations of agspeed.horovod.torch: results, gradients, process sets, and errors on every rank."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agspeed import native
from tests.python.distributed import delayed_device
from tests.python.distributed.ranks import Ranks
from tests.python.horovod import call_programs, programs

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(request.param, **programs.ADAPTIVE) as started:
        yield started


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    with Ranks(3, **programs.ADAPTIVE) as started:
        yield started


def expected_operations(rank: int, size: int) -> dict[str, Any]:
    inputs = [torch.arange(6.0).reshape(3, 2) + each for each in range(size)]
    stacked = torch.stack(inputs)
    total, mean_rank, sum_rank = stacked.sum(0), (size - 1) / 2, float(size * (size - 1) // 2)
    before = [2, *[1] * (size - 1)]  # every rank sends 2 rows to rank 0 and 1 row to each other rank
    first = sum(before[:rank])
    scattered = torch.arange(size + 1.0) * size
    ones = torch.zeros(size).index_add_(0, torch.arange(size), torch.ones(size))
    ones[0] += 2 * size
    return {
        "average": inputs[0] + mean_rank,
        "sum": total,
        "max": inputs[-1],
        "min": inputs[0],
        "product": stacked.prod(0),
        "scaled": total * 2,
        "integers": ((torch.arange(4) * size + int(sum_rank)).double() * (1.0 / size)).long(),
        "bfloat16": total,
        "compressed": inputs[0] + mean_rank,
        "input": inputs[rank],
        "in place": [total, total],
        "grouped": [total, torch.ones(2) * sum_rank],
        "grouped in place": [[total, torch.ones(2) * sum_rank]] * 2,
        "gathered": torch.cat([torch.full((each + 1, 2), float(each)) for each in range(size)]),
        "grouped gathered": [torch.arange(size), torch.ones(int(sum_rank), 1)],
        "broadcast": inputs[-1],
        "bools": torch.tensor([True, True]),
        "exchanged": torch.arange(size) * 10 + rank,
        "exchanged by splits": [
            torch.cat([torch.arange(first, first + before[rank]) + 10 * each for each in range(size)]),
            torch.full((size,), before[rank], dtype=torch.int32),
        ],
        "scattered": scattered[:2] if rank == 0 else scattered[rank + 1 : rank + 2],
        "grouped scattered": [torch.arange(size * 2.0)[2 * rank : 2 * rank + 2], torch.ones(1)],
        "sparse": ones,
        "object": {"rank": 0},
        "objects": [("rank", each) for each in range(size)],
        "unknown handle": None,
    }


def test_operations_have_the_results_of_a_plain_loop(ranks: Ranks, tmp_path: Path) -> None:
    for rank, found in enumerate(ranks.run(programs.every_operation, tmp_path)):
        expected = expected_operations(rank, ranks.size)
        assert found.keys() == expected.keys()
        assert [found.pop(name) for name in ("object", "objects")] == [
            expected.pop(each) for each in ("object", "objects")
        ]
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.skipif(not delayed_device.LIBRARY.exists(), reason="libdelayed_device.so is not built")
def test_tensors_on_a_device_have_the_same_results(ranks: Ranks, tmp_path: Path) -> None:
    expected = ranks.run(programs.every_operation, tmp_path, on_host=False)
    with Ranks(ranks.size, prepare=delayed_device.load) as on_device:
        found = on_device.run(programs.on_device, tmp_path)
    for ours, theirs in zip(found, expected, strict=True):
        for name in ("object", "objects"):
            assert ours.pop(name) == theirs.pop(name)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("first_seed", [0, 100])
def test_random_programs_equal_a_plain_loop(ranks: Ranks, tmp_path: Path, first_seed: int) -> None:
    """Each rank has an order of its own, over two process sets, and some ranks join early."""
    seeds = list(range(first_seed, first_seed + 50))
    assert ranks.run(programs.random_programs, tmp_path, seeds=seeds) == [[]] * ranks.size


def test_gradients_go_back_as_horovods_do(three: Ranks, tmp_path: Path) -> None:
    size = 3
    weights = torch.arange(1.0, 2 * size + 1)
    by_rank = [weights * (rank + 1) for rank in range(size)]
    total = torch.stack(by_rank).sum(0)
    for rank, found in enumerate(three.run(programs.gradients, tmp_path)):
        gathered = torch.arange(1.0, 2 * size * size + 1) * (sum(range(1, size + 1)) / size)
        expected = {
            "allreduce": total,
            "grouped": (total + 2 * (torch.arange(1.0, 2 * size + 1) + 2 * size) * 6) / size,
            "allgather": gathered[2 * size * rank : 2 * size * (rank + 1)],
            "broadcast": total / size if rank == 0 else torch.zeros(2 * size),
            "alltoall": torch.cat([weights[2 * rank : 2 * rank + 2] * (each + 1) for each in range(size)]),
            "reducescatter": torch.cat([torch.tensor([1.0, 2.0]) * (each + 1) for each in range(size)]) * size,
        }
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("size", [2, 4])
def test_adasum_adds_what_differs_and_averages_what_does_not(tmp_path: Path, size: int) -> None:
    rows = torch.stack([torch.arange(size) - 2.0 * rank for rank in range(size)]).double()
    while len(rows) > 1:
        left, right = rows[::2], rows[1::2]
        product = (left * right).sum(1, keepdim=True)
        rows = (1 - product / (2 * left.square().sum(1, keepdim=True))) * left + (
            1 - product / (2 * right.square().sum(1, keepdim=True))
        ) * right
    with Ranks(size) as ranks:
        for (parallel, orthogonal, neither), half, weight, skipped in ranks.run(programs.adasum, tmp_path):
            torch.testing.assert_close(parallel, torch.tensor([2.0] + [0.0] * (size - 1)))
            torch.testing.assert_close(orthogonal, torch.arange(1.0, size + 1))
            torch.testing.assert_close(neither, rows[0].float())
            torch.testing.assert_close(half.float(), rows[0].float(), rtol=1e-2, atol=1e-2)
            torch.testing.assert_close(weight, torch.full((1, size), -0.5))
            assert skipped == "AssertionError: Skipping synchronization is not supported when using Adasum optimizer."


def test_wrong_calls_say_why_at_every_rank_and_the_next_one_works(three: Ranks, tmp_path: Path) -> None:
    words = {
        "both": "ValueError: The op parameter supersedes average. Please provide only one of them.",
        "type": "ValueError: Tensor type torch.CharTensor is not supported.",
        "stride": "ValueError: Tensor is required to be contiguous.",
        "op": "ValueError: op=77 is not a reduction here",
        "Adasum": "ValueError: op=hvd.Adasum joins ranks in pairs of pairs, and 3 is no power of two",
        "root": "ValueError: rank 3 is not one of the process set's",
        "rows": "ValueError: alltoall of 4 rows over 3 ranks needs splits",
        "splits": "ValueError: splits [4, 0, 0] do not add up to the 3 rows of the tensor",
        "dimensions": "ValueError: allgather of a tensor of no dimensions",
        "shapes": "HorovodInternalError: Mismatched ALLREDUCE tensor shapes: rank 0 has [1], but rank 1 has [2]",
        "rows of gather": "HorovodInternalError: Mismatched ALLGATHER tensor shapes: rank 0 has [2, 1]",
        "types": "HorovodInternalError: Mismatched data types: rank 0 has f32, but rank 1 has f64",
        "kinds": "HorovodInternalError: Mismatched operations: rank 0 has allreduce, but rank 1 has allgather",
        "operations": "HorovodInternalError: Mismatched reduction operation: rank 0 has Min, but rank 1 has Max",
        "roots": "HorovodInternalError: Mismatched broadcast root ranks: rank 0 has root 0, but rank 1 has root 1",
        "factors": "HorovodInternalError: Mismatched prescale and/or postscale factors: rank 0 has (1, 1)",
        "object": "UserTypeError: an object of type builtins.object cannot be sent",
        "set": "ValueError: process set [0] is not registered",
        "handle": "ValueError: handle 123456 is none",
        "timeline": "ValueError: Set HOROVOD_TIMELINE=DYNAMIC to enable dynamic timeline usage.",
        "twice": "ValueError: Requested to allreduce, allgather, or broadcast a tensor with the same name",
        "before init": "ValueError: Horovod has not been initialized; use hvd.init().",
        "operation before init": "ValueError: Horovod has not been initialized; use hvd.init().",
    }
    for found in three.run(programs.wrong_calls, tmp_path):
        assert found.keys() == words.keys()
        for name, text in words.items():
            assert found[name].startswith(text), name


def test_names_that_come_again_may_change_what_they_stand_for(three: Ranks, tmp_path: Path) -> None:
    for found in three.run(call_programs.names_that_come_again, tmp_path):
        torch.testing.assert_close(found["changing"], [3 * each for each in call_programs.unlike_tensors()])
        torch.testing.assert_close(found["operations"], [torch.ones(2) * each for each in (3, 2, 1, 3)])
        torch.testing.assert_close(found["scaled"], [torch.ones(2) * each for each in (3.0, 1.5, 3.0)])
        torch.testing.assert_close(found["kept"], torch.ones(2))
        torch.testing.assert_close(found["backwards"], [torch.ones(1) * 3] * 3)
        assert found["taken"] == [None] * 3
        assert "is none of an operation that is under way" in found["poll"]
        assert not found["is held"]
        assert found["left"] == "nothing"


def test_a_name_that_is_under_way_is_refused_at_the_call_that_repeats_it(tmp_path: Path) -> None:
    with Ranks(2) as two:
        answers = two.run(call_programs.names_under_way, tmp_path)
    for kind, (first, again) in answers[0].items():
        assert first == "nothing", kind
        assert again.startswith("ValueError: Requested"), kind


def test_no_part_of_a_group_starts_if_one_of_its_names_is_under_way(tmp_path: Path) -> None:
    with Ranks(2) as two:
        answers = two.run(call_programs.a_group_of_which_one_name_is_under_way, tmp_path)
    for rank, (error, kept, found) in enumerate(answers):
        assert error.startswith("ValueError: Requested" if rank == 0 else ""), error
        assert kept == [[rank + 1.0] * 2] * 2, f"rank {rank}: a tensor of the refused group was changed"
        assert found == [[3.0] * 2] * 2


def test_what_a_caller_does_wrong_raises_before_anything_is_sent(three: Ranks, tmp_path: Path) -> None:
    words = {
        "too many rows": "ValueError: splits [2, 2, 2] do not add up to the 3 rows of the tensor",
        "too few rows": "ValueError: splits [0, 0, 0] do not add up to the 3 rows of the tensor",
        "negative": "ValueError: splits [-1, 4, 0] do not add up to the 3 rows of the tensor",
        "floats": "ValueError: alltoall expects splits to contain 32-bit integer elements, not torch.float32",
        "long": "ValueError: alltoall expects splits to contain 32-bit integer elements, not torch.int64",
        "matrix": "ValueError: alltoall expects a 1D splits tensor, not one of shape (3, 1)",
        "count": "ValueError: Number of entries in splits does not equal number of workers: 4 entries for 3 ranks",
        "uneven": "ValueError: alltoall of 4 rows over 3 ranks needs splits",
        "alltoall": "ValueError: alltoall of a tensor of no dimensions",
        "allgather": "ValueError: allgather of a tensor of no dimensions",
        "grouped_allgather": "ValueError: allgather of a tensor of no dimensions",
        "reducescatter": "ValueError: reducescatter of a tensor of no dimensions",
        "Adasum": "HorovodInternalError: Reducescatter does not support op=hvd.Adasum",
        "sparse": "ValueError: Tensor type torch.sparse.FloatTensor is not supported.",
        "sparse_": "ValueError: Tensor type torch.sparse.FloatTensor is not supported.",
        "nothing": "ValueError: there is no tensor: a grouped operation needs at least one.",
        "no tensor": "TypeError: a tensor is needed, not an object of type list.",
        "sparse of complex": "ValueError: Tensor type torch.ComplexFloatTensor is not supported.",
    }
    found = three.run(call_programs.calls_that_send_nothing, tmp_path)[0]
    assert found.keys() == words.keys()
    for name, text in words.items():
        assert found[name].startswith(text), f"{name}: {found[name]}"


def test_alltoall_without_splits_shares_out_different_numbers_of_rows(three: Ranks, tmp_path: Path) -> None:
    for rank, found in enumerate(three.run(call_programs.alltoall_without_splits, tmp_path)):
        rows = [torch.arange((each + 1.0) * rank, (each + 1.0) * (rank + 1)) for each in range(3)]
        counts = torch.tensor([1, 2, 3], dtype=torch.int32)
        torch.testing.assert_close(found["rows"], torch.cat(rows))
        torch.testing.assert_close(found["gradient"], torch.arange(1.0, 4.0).repeat_interleave(rank + 1))
        torch.testing.assert_close(found["handle"], (torch.cat(rows), counts))
        torch.testing.assert_close(found["empty"], (torch.cat(rows), counts))


@pytest.mark.slow
def test_a_result_may_be_taken_after_the_job_while_a_callback_waits_for_pythons_lock() -> None:
    command = [sys.executable, "-m", call_programs.__name__, call_programs.result_taken_after_the_job.__name__]
    environment = os.environ | {"AGSPEED_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout == "tensor([1., 1.])\n", result.stderr


def test_arguments_may_be_given_in_all_ways_the_first_time_and_again(three: Ranks, tmp_path: Path) -> None:
    for rank, found in enumerate(three.run(call_programs.ways_to_call, tmp_path)):
        values = {
            "positions": 3.0,
            "keywords": 6.0,
            "average": 1.0,
            "whole factor": 6.0,
            "no name": 3.0,
            "old average": 3.0,
        }
        for name, value in values.items():
            torch.testing.assert_close(found[name], [torch.full((2,), value)] * 2, msg=name)
        assert found["in place"]
        if rank == 2:
            assert found["outside"].startswith("ValueError: rank 2 cannot start an operation of process set")
        else:
            torch.testing.assert_close(found["set"], [torch.full((2,), 2.0)] * 2)
        assert found["strided"] == "ValueError: Tensor is required to be contiguous."
        assert "multiple values for argument 'name'" in found["two names"]
        assert "unexpected keyword argument 'nome'" in found["unknown"]
        assert "missing 1 required positional argument: 'tensor'" in found["no tensor"]
        assert found["after the job"] == "ValueError: Horovod has not been initialized; use hvd.init()."


def test_other_operations_than_allreduce_fail_while_a_rank_has_joined(three: Ranks, tmp_path: Path) -> None:
    answers = three.run(programs.join_with, tmp_path, kind="allgather")
    assert "ALLGATHER 'gather' is not supported with Join at this time" in answers[0][0]
    assert [last for _, last in answers] == [0, 0, 0]


def test_a_rank_that_leaves_ends_what_waits_for_it(three: Ranks, tmp_path: Path) -> None:
    for text in three.run(programs.leave_early, tmp_path)[1:]:
        assert text.startswith(
            "HorovodInternalError: Horovod has been shut down. This was caused by an exception on one"
        )


def test_a_job_begins_again_after_its_end(three: Ranks, tmp_path: Path) -> None:
    assert three.run(programs.init_again, tmp_path) == [[3.0] * 3] * 3


def test_process_sets_have_operations_of_their_own(three: Ranks, tmp_path: Path) -> None:
    for rank, found in enumerate(three.run(programs.process_sets, tmp_path)):
        ranks, size, place, is_in, number = found["facts"]
        assert (ranks, size, is_in) == ([0, 2], 2, rank != 1) and number > 0
        assert place == {0: 0, 1: -1, 2: 1}[rank]
        assert "exists already" in found["again"] and "exists already" in found["all"]
        assert "make no process set" in found["unknown"]
        if rank == 1:
            assert found["outside"].startswith("ValueError: rank 1 cannot start an operation of process set")
        else:
            assert (found["sum"], found["root"]) == (2.0, 2)
            assert found["wrong root"].startswith("ValueError: rank 1 is not one of the process set's")
        assert found["removed"] == (True, False)
        assert "is not registered, or has been removed" in found["after"]


def test_process_sets_may_be_given_to_init(three: Ranks, tmp_path: Path) -> None:
    answers = three.run(programs.process_sets_of_init, tmp_path)
    assert [total for total, _ in answers] == [2.0, 2.0, None]
    assert all(text.startswith("ValueError: Horovod has not been initialized") for _, text in answers)


def test_ranks_of_another_backend_have_connections_of_their_own(three: Ranks, tmp_path: Path) -> None:
    assert three.run(programs.init_again, tmp_path, "gloo") == [[3.0] * 3] * 3


def test_a_lost_rank_is_named_at_the_others(tmp_path: Path) -> None:
    with Ranks(3) as ranks, pytest.raises(EOFError):
        ranks.run(programs.lose_a_rank, tmp_path, folder=tmp_path)
    for rank in (0, 1):
        text = (tmp_path / f"error.{rank}").read_text()
        assert text.startswith("HorovodInternalError: rank 2 is lost")
