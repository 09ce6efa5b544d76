# SPDX-License-Identifier: Apache-2.0
"""Replicas keep the same bits on all ranks, although each rank makes some choices by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agspeed import native
from agspeed.horovod.torch.adasum import combine
from tests.python.distributed.ranks import Ranks
from tests.python.distributed.replicas import replica_cases
from tests.python.support.pairs import pairs

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

_STEPS = int(os.environ.get("REPLICA_STEPS", "60"))
"""The length of a trial of an optimizer's arms. A longer run uses 2000."""


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[Ranks]:
    with Ranks(2, timeout_s=240 + _STEPS // 4) as started:
        yield started


@pytest.mark.parametrize(
    ("name", "variant"),
    pairs(
        list(replica_cases.optimizers()), [(d, w) for d in (torch.float32, torch.bfloat16) for w in ("before", "after")]
    ),
)
def test_an_optimizer_leaves_replicas_equal(
    two_ranks: Ranks, tmp_path: Path, name: str, variant: tuple[torch.dtype, str]
) -> None:
    dtype, when = variant
    arguments = {"name": name, "dtype": dtype, "when": when, "steps": _STEPS, "cache": str(tmp_path / "cache")}
    first, second = two_ranks.run(replica_cases.trained, tmp_path, **arguments)
    assert first["weights"] == second["weights"], f"{_STEPS} steps; {first['reason']}; {second['reason']}"
    assert first["states"] == second["states"], f"{_STEPS} steps; {first['reason']}; {second['reason']}"


def test_ranks_with_other_processors_join_gradients_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(4, 10_003, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    expected = combine(rows)
    monkeypatch.setattr(torch, "dot", lambda left, right: (left * right).cumsum(0)[-1])  # sums in another order
    assert torch.equal(combine(rows), expected)


@pytest.mark.smoke
def test_a_region_that_one_rank_runs_otherwise_leaves_replicas_equal(two_ranks: Ranks, tmp_path: Path) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "kind": "Dense"}
    first, second = two_ranks.run(replica_cases.reduced_by_hand, tmp_path, **arguments)
    assert (first["plan"], second["plan"]) == ("native", "eager")
    assert first["weights"] == second["weights"]


def test_parameters_that_a_forward_changes_have_the_same_bits_at_all_ranks(two_ranks: Ranks, tmp_path: Path) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "kind": "WithTeacher"}
    first, second = two_ranks.run(replica_cases.reduced_by_hand, tmp_path, **arguments)
    assert first["weights"] == second["weights"]
    assert "is a parameter that it changes: all ranks need the same bits" in " ".join(first["report"].split())


def test_a_step_function_computes_eagers_bits_among_ranks(two_ranks: Ranks, tmp_path: Path) -> None:
    first, second = two_ranks.run(replica_cases.step_function, tmp_path, cache=str(tmp_path / "cache"))
    assert first["weights"] == second["weights"]
    assert first["status"].startswith("eager: 2 ranks train"), first["status"]
    assert "hand the module to agspeed.optimize" in first["status"]
