# SPDX-License-Identifier: Apache-2.0
"""Models under `fully_shard`: units are compiled from within, and weights equal plain FSDP2's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agspeed import native
from tests.python.distributed import sharded_cases
from tests.python.distributed.ranks import Ranks
from tests.python.support.pairs import first_of, thorough

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

_TIMEOUT_S = 240
"""Compiling on a busy machine is no hang."""
_BLOCKS = [f"blocks.{number}" for number in range(4)]


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(request.param, timeout_s=_TIMEOUT_S) as started:
        yield started


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[Ranks]:
    with Ranks(2, timeout_s=_TIMEOUT_S) as started:
        yield started


def assert_compiled(units: list[dict[str, str | None]], candidate: str) -> None:
    runs = {unit["name"]: unit["runs"] for unit in units}
    assert runs == {"FSDPModel": "eager", **dict.fromkeys(_BLOCKS, candidate)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "backend", "candidate"),
    [
        (2, "agspeed", "native"),
        thorough(3, "agspeed", "aot"),
        *(thorough(size, "gloo", candidate) for size in (2, 3) for candidate in ("aot", "native")),
    ],
    indirect=["ranks"],
)
def test_units_run_compiled_and_weights_are_those_of_eager(
    ranks: Ranks, tmp_path: Path, backend: str, candidate: str
) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "backend": candidate}
    results = ranks.run(sharded_cases.trained, tmp_path, backend, **arguments)
    for result in results:
        assert result["status"].startswith("tuned"), result["status"]
        assert_compiled(result["units"], candidate)
        sentence = (
            f"Sharded by fully_shard: eager runs 1 unit (FSDPModel: it calls other units); {candidate} runs 4 units"
        )
        assert f"{sentence} ({', '.join(_BLOCKS)})." in result["text"]
        if candidate == "aot":
            assert torch.equal(result["tuned"], result["plain"])
        else:
            torch.testing.assert_close(result["tuned"], result["plain"], rtol=1e-4, atol=1e-5)
        assert torch.equal(result["tuned"], results[0]["tuned"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    first_of(
        [
            "mixed precision",
            "checkpoints",
            "called twice",
            "graph breaks",
            "kept whole",
            "reentrant checkpoints",
            "called twice, checkpoints",
            "pairs",
        ],
        2,
    ),
)
def test_weights_are_those_of_eager_whatever_units_are_like(two_ranks: Ranks, tmp_path: Path, kind: str) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "backend": "aot", "kind": kind}
    for result in two_ranks.run(sharded_cases.trained, tmp_path, **arguments):
        assert_compiled(result["units"], "aot")
        assert torch.equal(result["tuned"], result["plain"])


def test_a_model_that_is_one_unit_is_compiled_as_a_whole(two_ranks: Ranks, tmp_path: Path) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "backend": "aot", "kind": "one unit"}
    for result in two_ranks.run(sharded_cases.trained, tmp_path, **arguments):
        assert {unit["name"]: unit["runs"] for unit in result["units"]} == {"FSDPModel": "aot"}
        assert torch.equal(result["tuned"], result["plain"])


@pytest.mark.slow
@pytest.mark.parametrize("how", first_of(["in place", "wrapped", "forward"], 1))
def test_a_unit_that_its_user_compiles_is_left_alone(two_ranks: Ranks, tmp_path: Path, how: str) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "backend": "aot", "kind": f"compiled {how}"}
    for result in two_ranks.run(sharded_cases.trained, tmp_path, **arguments):
        runs = {unit["name"]: (unit["runs"], unit["why"]) for unit in result["units"]}
        assert runs["blocks.0"] == ("eager", "it is compiled already")
        assert [runs[name] for name in _BLOCKS[1:]] == 3 * [("aot", None)]
        assert torch.equal(result["tuned"], result["plain"])


@pytest.mark.slow
def test_gradients_may_be_accumulated(two_ranks: Ranks, tmp_path: Path) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "backend": "aot", "micro_batches": 3}
    for result in two_ranks.run(sharded_cases.trained, tmp_path, **arguments):
        assert_compiled(result["units"], "aot")
        assert torch.equal(result["tuned"], result["plain"])


@pytest.mark.slow
def test_a_sharded_model_is_evaluated_paused_and_restored(two_ranks: Ranks, tmp_path: Path) -> None:
    for result in two_ranks.run(sharded_cases.lived_with, tmp_path, cache=str(tmp_path / "cache")):
        for what, (plain, tuned) in result["found"].items():
            assert torch.equal(plain, tuned), what
        assert result["is clean"] and result["names"]


@pytest.mark.parametrize("kind", ["", "one unit"])
def test_evaluations_before_the_training_leave_ranks_in_step(tmp_path: Path, kind: str) -> None:
    with Ranks(2, timeout_s=_TIMEOUT_S) as own:  # a rank that makes a session less never syncs with others again
        results = own.run(sharded_cases.evaluated_first, tmp_path, cache=str(tmp_path / "cache"), kind=kind)
    assert [result["wrapper"] for result in results] == ["fully_shard", None]
    for result in results:
        assert torch.equal(result["tuned"], result["plain"])


@pytest.mark.parametrize("how", ["offloaded", "on a gpu"])
def test_units_elsewhere_are_left_alone_though_they_are_whole_just_now(
    two_ranks: Ranks, tmp_path: Path, how: str
) -> None:
    for result in two_ranks.run(sharded_cases.left_alone, tmp_path, cache=str(tmp_path / "cache"), how=how):
        assert result["status"].startswith("eager") and "sharded" in result["status"], result["status"]


def test_a_unit_that_is_not_whole_in_its_backward_is_left_alone(two_ranks: Ranks, tmp_path: Path) -> None:
    for why in two_ranks.run(sharded_cases.not_gathered_again, tmp_path, cache=str(tmp_path / "cache")):
        assert why["blocks.0"] == "its parameters are not gathered for its backward" and why["blocks.1"] is None


@pytest.mark.thorough
@pytest.mark.parametrize("backend", first_of(["native", "aot"], 1))
def test_checkpointed_units_survive_a_candidate_that_raises(two_ranks: Ranks, tmp_path: Path, backend: str) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "backend": backend}
    for result in two_ranks.run(sharded_cases.raising, tmp_path, **arguments):
        assert result["decided"] == backend and result["plan"] != backend
        torch.testing.assert_close(result["tuned"], result["plain"], rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("how", first_of(["restored", "eager", "paused"], 1))
def test_a_backward_calls_units_again_as_they_ran(two_ranks: Ranks, tmp_path: Path, how: str) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "backend": "native", "how": how}
    for result in two_ranks.run(sharded_cases.switched_within_a_step, tmp_path, **arguments):
        torch.testing.assert_close(result["tuned"], result["plain"], rtol=1e-4, atol=1e-5)
        assert result["is clean"] or how == "paused"


def test_what_users_put_in_the_place_of_a_forward_stays(two_ranks: Ranks, tmp_path: Path) -> None:
    for result in two_ranks.run(sharded_cases.patched, tmp_path, cache=str(tmp_path / "cache")):
        assert result["signature"] == "(x: 'torch.Tensor') -> 'torch.Tensor'"
        assert result["are kept"] and result["calls"] == {0: 4, 1: 4}
        assert result["why"] == "its forward was replaced after agspeed.optimize"
        assert not result["compiled"]


def test_a_paused_model_s_units_run_eagerly_on_their_own(two_ranks: Ranks, tmp_path: Path) -> None:
    for compiled in two_ranks.run(sharded_cases.paused_units, tmp_path, cache=str(tmp_path / "cache")):
        assert not compiled


@pytest.mark.slow
def test_a_rank_that_restores_its_model_tells_the_others(two_ranks: Ranks, tmp_path: Path) -> None:
    results = two_ranks.run(sharded_cases.restored_at_one_rank, tmp_path, cache=str(tmp_path / "cache"))
    assert results[0]["status"].startswith("eager") and "restored there" in results[0]["status"]
    for result in results:
        assert torch.equal(result["tuned"], result["plain"])


@pytest.mark.slow
@pytest.mark.parametrize("backend", first_of(["agspeed", "gloo"], 1))
def test_ranks_decide_together_on_one_plan_for_all_units(two_ranks: Ranks, tmp_path: Path, backend: str) -> None:
    results = two_ranks.run(sharded_cases.decided_together, tmp_path, backend, cache=str(tmp_path / "cache"))
    for result in results:
        assert torch.equal(result["tuned"], result["plain"])
        assert result["status"].startswith("tuned") and "2 ranks tune together" in result["status"], result["status"]
        assert result["steps"] == results[0]["steps"]
        assert_compiled(result["units"], "aot")
        assert result["sentence"] == f"Group: 2 ranks, fully_shard over {backend}; all tune as one."
        assert result["hooks"] == 0, "a settled model pays for no hook"


@pytest.mark.slow
@pytest.mark.thorough
def test_ranks_sync_where_reductions_are_requested_after_the_forward(two_ranks: Ranks, tmp_path: Path) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "syncs_late": True}
    for result in two_ranks.run(sharded_cases.decided_together, tmp_path, **arguments):
        assert torch.equal(result["tuned"], result["plain"])
        assert result["status"].startswith("tuned") and "2 ranks tune together" in result["status"], result["status"]
