# SPDX-License-Identifier: Apache-2.0
"""Codecs between real ranks: `agspeed.distributed.hooks` and `compression` of Horovod's optimizer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from agspeed import native
from agspeed.distributed import hooks
from agspeed.errors import UserTypeError
from tests.python.distributed import training
from tests.python.distributed.codecs import codec_cases as cases
from tests.python.distributed.ranks import Ranks

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

NEAR: dict[str, tuple[dict[str, Any], float]] = {
    # codec -> options, largest error of a weight after some steps
    "fp16": ({}, 1e-4),
    "bf16": ({}, 1e-3),
    "int8": ({"dense_below": 1}, 3e-3),
    "topk": ({"density": 0.4, "dense_below": 1}, 3e-2),
}
LOSSY: dict[str, dict[str, Any]] = {
    "bf16": {},
    "int8": {"dense_below": 1},
    "topk": {"density": 0.25, "warmup_steps": 20, "dense_below": 1},
    "powersgd": {"rank": 4, "start_step": 20},
}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(2, timeout_s=600) as started:  # long trainings
        yield started


def largest_error(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    return max(float((one - other).abs().max()) for one, other in zip(found, expected, strict=True))


def are_replicas(found: list[list[torch.Tensor]]) -> bool:
    return all(all(map(torch.equal, each, found[0])) for each in found)


# --- DistributedDataParallel ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", NEAR)
def test_ddp_trains_nearly_as_without_a_codec(ranks: Ranks, tmp_path: Path, codec: str) -> None:
    options, limit = NEAR[codec]
    expected = ranks.run(training.ddp, tmp_path, steps=6)[0]
    dense = ranks.run(cases.ddp_weights, tmp_path, codec="", options={})[0]
    found = ranks.run(cases.ddp_weights, tmp_path, codec=codec, options=options)
    assert are_replicas(found)
    assert len(expected) < len(dense)
    assert 0 < largest_error(found[0], dense) < limit


@pytest.mark.parametrize("codec", ["int8", "topk"])
def test_codecs_send_over_gloo_what_they_send_over_our_backend(ranks: Ranks, tmp_path: Path, codec: str) -> None:
    options, _ = NEAR[codec]
    ours = ranks.run(cases.ddp_weights, tmp_path, codec=codec, options=options)
    assert are_replicas([*ours, *ranks.run(cases.ddp_weights, tmp_path, "gloo", codec=codec, options=options)])


def test_top_k_of_ddp_sends_the_largest_of_each_bucket(ranks: Ranks, tmp_path: Path) -> None:
    options = {"density": 0.1, "dense_below": 1}
    found, other = ranks.run(cases.ddp_gradients, tmp_path, codec="topk", options=options)
    dense = ranks.run(cases.ddp_gradients, tmp_path, codec="", options={})[0]
    assert all(map(torch.equal, found, other))
    for step, (sparse, whole) in enumerate(zip(found, dense, strict=True)):
        assert 0 < int((sparse != 0).sum()) <= 0.11 * sparse.numel(), step
        assert int((whole != 0).sum()) > 0.5 * whole.numel()


def test_powersgd_of_ddp_keeps_replicas_equal(ranks: Ranks, tmp_path: Path) -> None:
    options = {"rank": 2, "start_step": 2}
    found = ranks.run(cases.ddp_weights, tmp_path, codec="powersgd", options=options)
    dense = ranks.run(cases.ddp_weights, tmp_path, codec="", options={})[0]
    assert are_replicas(found)
    assert 0 < largest_error(found[0], dense) < 0.1


def test_ranks_with_uneven_inputs_stay_equal(ranks: Ranks, tmp_path: Path) -> None:
    options = {"density": 0.1, "dense_below": 1}
    assert are_replicas(ranks.run(cases.ddp_with_uneven_inputs, tmp_path, codec="topk", options=options))


@pytest.mark.parametrize("codec", ["int8", "topk"])
def test_infinity_reaches_all_ranks_as_without_a_codec(ranks: Ranks, tmp_path: Path, codec: str) -> None:
    for gradients, num_refused in ranks.run(cases.ddp_with_infinity, tmp_path, codec=codec, options={"dense_below": 1}):
        assert num_refused == 1
        assert not torch.isfinite(gradients).any()


def test_ddp_codecs_that_differ_are_named_at_every_rank(ranks: Ranks, tmp_path: Path) -> None:
    for found in ranks.run(cases.ddp_that_differs, tmp_path, codecs=["int8", "topk"]):
        assert found.startswith("UserError"), found
        assert "rank 0: int8(" in found
        assert "rank 1: topk(" in found


def test_a_rank_without_a_codec_is_an_error_at_every_rank(ranks: Ranks, tmp_path: Path) -> None:
    with_codec, without = ranks.run(cases.ddp_that_differs, tmp_path, codecs=["int8", ""])
    assert "This rank's gradients go through int8(" in with_codec
    assert "all_gather" in without, without
    assert "all_reduce" in without, without


def test_a_training_with_top_k_continues_from_its_checkpoint(ranks: Ranks, tmp_path: Path) -> None:
    options = {"density": 0.1, "momentum": 0.5, "dense_below": 1}
    for whole, resumed in ranks.run(cases.ddp_resumed, tmp_path, codec="topk", options=options, folder=tmp_path):
        assert all(map(torch.equal, whole, resumed))


def test_powersgd_loads_the_state_of_another_bucket_layout(ranks: Ranks, tmp_path: Path) -> None:
    options = {"rank": 2, "start_step": 2}
    found = ranks.run(cases.ddp_resumed, tmp_path, codec="powersgd", options=options, folder=tmp_path)
    assert are_replicas([resumed for _, resumed in found])
    for whole, resumed in found:
        assert largest_error(whole, resumed) < 0.1


@pytest.mark.parametrize("model", ["language model", "conv net"])
@pytest.mark.parametrize("steps", [120, pytest.param(3000, marks=pytest.mark.thorough)])
def test_lossy_training_reaches_the_dense_loss(ranks: Ranks, tmp_path: Path, model: str, steps: int) -> None:
    first, dense = ranks.run(cases.losses, tmp_path, model=model, codec="", options={}, steps=steps)[0]
    assert dense < 0.9 * first, f"{model} does not learn: {first} to {dense}"
    for codec, options in LOSSY.items():
        _, final = ranks.run(cases.losses, tmp_path, model=model, codec=codec, options=options, steps=steps)[0]
        assert final < dense + 0.15 * (first - dense), f"{codec}: {final} after {first}, and {dense} without a codec"


def test_a_comparison_shows_bytes_and_errors_of_every_codec(ranks: Ranks, tmp_path: Path) -> None:
    rows = {row["codec"].split("(")[0]: row for row in ranks.run(cases.compared, tmp_path)[0]}
    assert list(rows) == ["fp16", "bf16", "int8", "topk", "powersgd"]
    assert [rows[name]["ratio"] for name in ("fp16", "bf16")] == [2, 2]
    assert rows["int8"]["ratio"] == pytest.approx(4 * 256 / 260, rel=0.02)
    assert rows["topk"]["ratio"] > 50
    assert rows["powersgd"]["ratio"] is None
    assert rows["fp16"]["step_error"] < rows["bf16"]["step_error"] < rows["int8"]["step_error"]
    for name in ("topk", "powersgd"):
        assert 0 < rows[name]["sum_error"] < rows[name]["step_error"] < 1


def test_models_that_are_not_wrapped_are_refused() -> None:
    with pytest.raises(UserTypeError, match="int8 needs a DistributedDataParallel, and got Linear"):
        hooks.int8(nn.Linear(2, 2))  # type: ignore[arg-type]


def test_a_second_codec_is_refused(ranks: Ranks, tmp_path: Path) -> None:
    sentence = "topk cannot be set, because the model has a communication hook already"
    assert all(found.startswith(sentence) for found in ranks.run(cases.ddp_with_two_codecs, tmp_path))


# --- Horovod ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", NEAR)
def test_horovod_trains_nearly_as_without_a_codec(ranks: Ranks, tmp_path: Path, codec: str) -> None:
    options, limit = NEAR[codec]
    dense = ranks.run(cases.hvd_weights, tmp_path, codec="none", options={})[0]
    for wrapping in ({}, {"groups": 3}) if options else ({},):
        found = ranks.run(cases.hvd_weights, tmp_path, codec=codec, options=options, **wrapping)
        assert are_replicas(found)
        assert 0 < largest_error(found[0], dense) < limit, wrapping


def test_a_codec_sums_up_if_asked(ranks: Ranks, tmp_path: Path) -> None:
    from agspeed.horovod.torch import Sum

    options = {"dense_below": 1}
    dense = ranks.run(cases.hvd_weights, tmp_path, codec="none", options={}, op=Sum, steps=1)[0]
    found = ranks.run(cases.hvd_weights, tmp_path, codec="int8", options=options, op=Sum, steps=1)
    assert are_replicas(found)
    assert 0 < largest_error(found[0], dense) < 3e-3


@pytest.mark.parametrize("codecs", list(itertools.permutations(["int8", "topk"])))
def test_codecs_that_differ_are_named_at_every_rank(ranks: Ranks, tmp_path: Path, codecs: list[str]) -> None:
    for found in ranks.run(cases.hvd_that_differs, tmp_path, codecs=codecs):
        assert found.startswith("UserError"), found
        for rank, codec in enumerate(codecs):
            assert f"rank {rank}: {codec}" in found


def test_a_rank_that_joined_early_does_not_disturb_the_agreement(ranks: Ranks, tmp_path: Path) -> None:
    weights = ranks.run(cases.hvd_after_a_join, tmp_path, codec="bf16")
    assert len(weights) == ranks.size


def test_uses_that_codecs_do_not_have_are_refused(ranks: Ranks, tmp_path: Path) -> None:
    for found in ranks.run(cases.hvd_wrong_uses, tmp_path):
        assert found["allreduce"].startswith("UserError: hvd.Compression.auto, int8 and topk")
        assert found["op"].startswith("ValueError: compression=topk(")
        assert found["predivide"].startswith("ValueError: compression=int8(")


@pytest.mark.parametrize("codecs", [["none", "topk"], ["int8", "none"], ["bf16", "int8"]])
def test_a_rank_without_a_codec_is_an_error_at_every_rank_of_horovod(
    ranks: Ranks, tmp_path: Path, codecs: list[str]
) -> None:
    found = ranks.run(cases.hvd_that_differs, tmp_path, codecs=codecs)
    assert all(each.startswith("HorovodInternalError") for each in found), found
    # A rank that waits for another gradient first may learn only that the job has ended.
    assert any("Mismatched data types" in each for each in found), found
