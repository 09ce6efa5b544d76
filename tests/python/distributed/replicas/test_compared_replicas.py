# SPDX-License-Identifier: Apache-2.0
"""Replicas are compared if a setting asks for it. A message names ranks and parameter of each difference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agspeed import native
from agspeed.distributed.replicas import digest
from tests.python.distributed.ranks import Ranks
from tests.python.distributed.replicas import replica_cases

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


@pytest.fixture(scope="module")
def three_ranks() -> Iterator[Ranks]:
    with Ranks(3, timeout_s=240) as started:
        yield started


@pytest.mark.parametrize("backend", ["agspeed", "gloo"])
def test_a_difference_names_the_rank_and_the_first_parameter(three_ranks: Ranks, tmp_path: Path, backend: str) -> None:
    found = three_ranks.run(replica_cases.compared, tmp_path, backend, cache=str(tmp_path / "cache"), changes={0: 15})
    (line,) = found[0]["heard"]
    assert (
        "the replicas of Dense have come apart: rank 0 has other bits than rank 1 in 1 of 2 parameters, the first is "
        "module.last.weight (backward 20)"
    ) in line
    for result in found:
        assert result["error"] == "" and result["hooks"] == 0
    assert found[1]["heard"] == found[2]["heard"] == []


def test_a_difference_is_an_error_at_all_ranks_in_the_same_step_with_strict(three_ranks: Ranks, tmp_path: Path) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "changes": {2: 15}, "strict": True}
    found = three_ranks.run(replica_cases.compared, tmp_path, **arguments)
    assert "rank 2" in found[0]["error"] and "1 of 2 parameters" in found[0]["error"]
    assert found[0]["error"].endswith("(raised because strict is set)")
    assert [result["error"] for result in found] == 3 * [found[0]["error"]]
    assert [result["step"] for result in found] == [22, 22, 22], "the second after the one of the digests"


@pytest.mark.parametrize("what", ["", "accumulating", "more forwards at rank 0"])
def test_equal_replicas_are_compared_without_a_word(three_ranks: Ranks, tmp_path: Path, what: str) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "changes": {}, "what": what}
    for result in three_ranks.run(replica_cases.compared, tmp_path, **arguments):
        assert result["heard"] == [] and result["error"] == ""
        assert result["hooks"] == 1, "still compared"


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ({"silent": 0, "num_before": 1}, [0, 1, 1]),
        ({"silent": 2, "num_before": 2}, [0, 0, 0]),
        ({"what": "restored at rank 1"}, [0, 0, 0]),
    ],
    ids=["not at rank 0", "not at rank 2", "restored at rank 1"],
)
def test_ranks_that_do_not_all_compare_end_it_in_silence(
    three_ranks: Ranks, tmp_path: Path, arguments: dict[str, Any], left: list[int]
) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "changes": {1: 15}, **arguments}
    found = three_ranks.run(replica_cases.compared, tmp_path, **arguments)
    assert [result["heard"] for result in found] == [[], [], []]
    assert [result["error"] for result in found] == ["", "", ""]
    assert [result["hooks"] for result in found] == left


def test_a_restored_model_has_no_hook_of_it(three_ranks: Ranks, tmp_path: Path) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "changes": {1: 15}, "what": "restored"}
    for result in three_ranks.run(replica_cases.compared, tmp_path, **arguments):
        assert result["heard"] == [] and result["hooks"] == 0


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(()),
        torch.zeros(3, 5, dtype=torch.bfloat16),
        torch.zeros(4, 6).t(),
        torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.zeros(7, dtype=torch.complex128),
        torch.zeros(9, dtype=torch.int8),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)}",
)
def test_a_digest_knows_each_bit(tensor: torch.Tensor) -> None:
    digests = {digest(tensor)}
    for index in range(tensor.numel()):
        changed = tensor.clone().contiguous().view(-1)
        changed[index] = 1
        digests.add(digest(changed.view(tensor.shape)))
    assert len(digests) == 1 + tensor.numel()
