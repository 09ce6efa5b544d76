# SPDX-License-Identifier: Apache-2.0
"""A wrapped model that tunes with its ranks trains to a plain model's weights, for all features of wrappers and all
actions of users that are tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agspeed import native
from tests.python.distributed import tuned_cases
from tests.python.distributed.ranks import Ranks
from tests.python.support.pairs import first_of

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

_TIMEOUT_S = 240
"""Compiling takes long on a busy machine and is no hang."""


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[Ranks]:
    with Ranks(2, timeout_s=_TIMEOUT_S) as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", tuned_cases.WRAPPERS)
def test_weights_are_plain_trainings_whatever_the_wrapper_does(two_ranks: Ranks, tmp_path: Path, wrapper: str) -> None:
    results = two_ranks.run(tuned_cases.tuned_under, tmp_path, wrapper=wrapper, cache=str(tmp_path / "cache"))
    for result in results:
        assert not result["status"].startswith("tuning"), result["status"]
        assert torch.equal(result["weights"], result["expected"])
        assert torch.equal(result["parameters"], results[0]["parameters"])
        has_layouts = any("/" in arm for arm in result["arms"])
        assert wrapper == "static_graph" or not has_layouts, f"another layout under {wrapper}: {result['arms']}"


@pytest.mark.smoke
@pytest.mark.parametrize("when", first_of(["before", "after", "around"], 1))
def test_replicated_models_are_tuned_by_all_ranks_together(two_ranks: Ranks, tmp_path: Path, when: str) -> None:
    results = two_ranks.run(tuned_cases.replicated, tmp_path, cache=str(tmp_path / "cache"), when=when)
    for result in results:
        assert torch.equal(result["weights"], result["expected"])
        assert result["report"]["wrapper"] == "replicate"
        assert result["hooks"] == 1, "its own"
        if when == "around":
            assert "each of the 2 ranks tunes on its own" in result["status"]
        else:
            assert result["status"] == results[0]["status"]
            assert result["status"].startswith("tuned: aot") and "2 ranks tune together" in result["status"]
            assert result["steps"] == results[0]["steps"]


def test_ranks_that_run_out_of_batches_one_by_one_tune_alone(two_ranks: Ranks, tmp_path: Path) -> None:
    results = two_ranks.run(tuned_cases.joined, tmp_path, cache=str(tmp_path / "cache"))
    for result in results:
        assert torch.equal(result["weights"], result["expected"])
        assert not any("/" in arm for arm in result["arms"]), result["arms"]


@pytest.mark.slow
def test_a_tuned_model_is_paused_copied_saved_resumed_and_restored(two_ranks: Ranks, tmp_path: Path) -> None:
    for result in two_ranks.run(tuned_cases.lived_with, tmp_path, cache=str(tmp_path / "cache")):
        assert result["status"].startswith("tuned"), result["status"]
        assert result["keys are those of a plain model"]
        for what, (ours, expected) in result["found"].items():
            assert torch.equal(ours, expected), f"{what}: other weights than those of plain training"


@pytest.mark.slow
@pytest.mark.parametrize("is_decided", [True, False], ids=["after-tuning", "while-tuning"])
def test_a_group_made_anew_trains_on(two_ranks: Ranks, tmp_path: Path, is_decided: bool) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "store": str(tmp_path / "second-store"), "is_decided": is_decided}
    for result in two_ranks.run(tuned_cases.group_made_anew, tmp_path, **arguments):
        for number, (ours, expected) in enumerate(result["found"]):
            assert torch.equal(ours, expected), f"group {number}"
        if is_decided:
            assert result["status"].startswith("tuned"), result["status"]
        else:
            assert result["status"].startswith("eager: its DistributedDataParallel was replaced"), result["status"]
        assert result["fresh"].startswith("tuned"), result["fresh"]
        assert "2 ranks tune together" in result["fresh"]
