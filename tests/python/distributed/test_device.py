# SPDX-License-Identifier: Apache-2.0
"""Tensors on an accelerator are staged through host memory, in stream order and without blocking the host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agspeed import native
from tests.python.distributed import delayed_device, device_programs, programs
from tests.python.distributed.ranks import Ranks
from tests.python.support.equality import assert_same

BOTH = "cpu:agspeed,delayed:agspeed"

pytestmark = [
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
    pytest.mark.skipif(not delayed_device.LIBRARY.exists(), reason="libdelayed_device.so is not built"),
]


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(request.param, prepare=delayed_device.load) as started:
        yield started


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("all_reduces", {"count": 70_000, "dtypes": [torch.float32, torch.bfloat16], "ops": ["SUM", "MAX"]}),
        ("movements", {"count": 20_000, "dtype": torch.float32}),
        ("reductions_of_parts", {"count": 5_000, "dtype": torch.float64}),
        ("uneven", {}),
        ("ring_of_messages", {"count": 30_000}),
    ],
)
def test_the_device_gets_what_the_host_gets(
    ranks: Ranks, tmp_path: Path, program: str, arguments: dict[str, Any]
) -> None:
    expected = ranks.run(getattr(programs, program), tmp_path, **arguments)
    found = ranks.run(device_programs.on_device, tmp_path, BOTH, program=program, **arguments)
    assert_same(found, expected)


def test_calls_return_before_their_input_is_made_and_let_others_pass(ranks: Ranks, tmp_path: Path) -> None:
    total = ranks.size * (ranks.size - 1) / 2
    for found in ranks.run(device_programs.started_before_their_input, tmp_path, BOTH):
        assert not found["was_completed"]
        assert found["meanwhile"] == total
        assert found["doubled"] == 2 * total
        assert_same(found["late"], torch.full((50_000,), total + ranks.size))
        assert_same(found["gathered"], torch.arange(float(ranks.size)).repeat_interleave(1000))


def test_messages_of_one_tag_keep_their_order_though_the_first_comes_later(ranks: Ranks, tmp_path: Path) -> None:
    for rank, found in enumerate(ranks.run(device_programs.messages_of_one_tag, tmp_path, BOTH)):
        source = (rank - 1) % ranks.size
        assert_same(found, [torch.full((3000,), 10.0 + source), torch.full((3000,), 20.0 + source)])


def test_temporary_tensors_outlive_their_copies(ranks: Ranks, tmp_path: Path) -> None:
    steps, size = 40, ranks.size
    expected = float(steps * size * (size - 1) / 2 + size * steps * (steps - 1) / 2)
    for found in ranks.run(device_programs.repeated, tmp_path, BOTH, steps=steps, count=30_000):
        assert found == [expected]


def test_an_input_that_never_comes_ends_at_the_deadline(ranks: Ranks, tmp_path: Path) -> None:
    for message in ranks.run(device_programs.never_made, tmp_path, BOTH, timeout_s=0.5):
        assert "before its input was there" in message, message


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}], ids=str)
def test_ddp_trains_as_on_the_host(ranks: Ranks, tmp_path: Path, options: dict[str, Any]) -> None:
    expected = ranks.run(programs.ddp_weights, tmp_path, steps=3, **options)
    found = ranks.run(device_programs.on_device, tmp_path, BOTH, program="ddp_weights", steps=3, **options)
    assert_same(found, expected)
