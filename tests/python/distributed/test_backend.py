# SPDX-License-Identifier: Apache-2.0
"""The backend "agspeed" of torch.distributed compared with torch's own Gloo: same calls, same results."""

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
from tests.python.distributed import programs
from tests.python.distributed.ranks import Ranks
from tests.python.support.equality import assert_same
from tests.python.support.installed import installed

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


@pytest.fixture(scope="module", params=[2, 3, 4])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(request.param) as started:
        yield started


def test_all_reduce_gives_what_gloo_gives(ranks: Ranks, tmp_path: Path) -> None:
    integers = [torch.uint8, torch.int8, torch.int32, torch.int64]
    for count in (1, 1023, 70000):
        for dtypes, ops in (
            (programs.REDUCIBLE, ["SUM", "MIN", "MAX", "PRODUCT"]),
            (integers, ["BAND", "BOR", "BXOR"]),
        ):
            arguments = {"count": count, "dtypes": dtypes, "ops": ops}
            expected = ranks.run(programs.all_reduces, tmp_path, "gloo", **arguments)
            assert_same(ranks.run(programs.all_reduces, tmp_path, **arguments), expected)


def test_averages_are_averages(ranks: Ranks, tmp_path: Path) -> None:
    [found] = ranks.run(programs.all_reduces, tmp_path, count=100, dtypes=[torch.float32], ops=["AVG"])[0]
    expected = sum(programs.data(100, torch.float32, rank) for rank in range(ranks.size)) / ranks.size
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("count", [1, 1000, 40000])
def test_elements_are_moved_as_gloo_moves_them(ranks: Ranks, tmp_path: Path, count: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        expected = ranks.run(programs.movements, tmp_path, "gloo", count=count, dtype=dtype)
        found = ranks.run(programs.movements, tmp_path, count=count, dtype=dtype)
        for each in found:
            assert_same(torch.cat(each.pop("all_to_all")), each["all_to_all_single"])
        assert_same(found, expected)


@pytest.mark.parametrize("count", [3, 50000])
def test_parts_are_reduced_as_gloo_reduces_them(ranks: Ranks, tmp_path: Path, count: int) -> None:
    expected = ranks.run(programs.reductions_of_parts, tmp_path, "gloo", count=count, dtype=torch.float32)
    assert_same(ranks.run(programs.reductions_of_parts, tmp_path, count=count, dtype=torch.float32), expected)


def test_uneven_strided_and_empty_tensors(ranks: Ranks, tmp_path: Path) -> None:
    size = ranks.size
    for rank, found in enumerate(ranks.run(programs.uneven, tmp_path)):
        assert_same(found["all_gather"], [torch.full((peer + 1,), float(peer)) for peer in range(size)])
        rows = [torch.full((peer + rank, 2), float(peer)) for peer in range(size)]
        assert_same(found["all_to_all_single"], torch.cat(rows))
        expected = torch.zeros(4, 6)
        expected.t()[::2].fill_(size * (size + 1) / 2)
        assert_same(found["strided"], expected)
        assert found["empty"].numel() == 0


def test_messages_of_one_tag_arrive_in_order(ranks: Ranks, tmp_path: Path) -> None:
    for rank, found in enumerate(ranks.run(programs.ring_of_messages, tmp_path, count=30000)):
        source = (rank - 1) % ranks.size
        assert [float(tensor[0]) for tensor in found] == [10.0 * source, 10.0 * source + 1, 10.0 * source + 2, -source]


def test_subgroups_are_apart(ranks: Ranks, tmp_path: Path) -> None:
    for rank, found in enumerate(ranks.run(programs.subgroups, tmp_path)):
        own = float(sum(peer + 1 for peer in range(ranks.size) if peer % 2 == rank % 2))
        everything = ranks.size * (ranks.size + 1) / 2
        assert [float(tensor) for tensor in found] == [own, everything, own]


def test_objects_travel(ranks: Ranks, tmp_path: Path) -> None:
    everything = [{"rank": rank, "text": "x" * (10 * rank)} for rank in range(ranks.size)]
    assert ranks.run(programs.objects, tmp_path) == [[everything, [{"from": 0}]]] * ranks.size


DDP_OPTIONS = [
    {},
    {"bucket_cap_mb": 0.005},
    {"static_graph": True, "gradient_as_bucket_view": True},
    {"find_unused_parameters": True, "unused": True},
]


@pytest.mark.parametrize("options", DDP_OPTIONS, ids=str)
def test_ddp_trains_as_over_gloo(ranks: Ranks, tmp_path: Path, options: dict[str, Any]) -> None:
    found = ranks.run(programs.ddp_weights, tmp_path, steps=4, **options)
    expected = ranks.run(programs.ddp_weights, tmp_path, "gloo", steps=4, **options)
    assert all(torch.equal(a, b) for weights in found for a, b in zip(weights, found[0], strict=True))
    if ranks.size == 2:  # two ranks have one order of summation, so the bits are equal
        assert_same(found, expected)
    else:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_futures_yield_their_tensors(ranks: Ranks, tmp_path: Path) -> None:
    mean = (ranks.size + 1) / 2
    for value, is_completed in ranks.run(programs.futures, tmp_path):
        assert_same(value, torch.full((1000,), mean))
        assert is_completed


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("root", "ValueError: agspeed: invalid root rank: 9 in a group of"),
        ("receiver", "ValueError: agspeed: send: invalid rank 9 at rank"),
        ("sender", "ValueError: agspeed: recv: invalid rank 9 at rank"),
        ("bits of floats", "f32"),
    ],
)
def test_wrong_calls_raise_and_leave_the_group_usable(ranks: Ranks, tmp_path: Path, name: str, words: str) -> None:
    for message in ranks.run(programs.error_of, tmp_path, name=name):
        assert words in message


def test_calls_that_differ_are_named_at_every_rank(ranks: Ranks, tmp_path: Path) -> None:
    for message in ranks.run(programs.mismatch, tmp_path):
        assert "DistBackendError" in message
        assert "8 x f32" in message and "9 x f32" in message


def test_a_failed_group_names_its_failure_at_the_next_call(ranks: Ranks, tmp_path: Path) -> None:
    for message in ranks.run(programs.call_after_failure, tmp_path):
        assert "DistBackendError" in message and "9 x f32" in message


def test_groups_beside_a_default_group_of_gloo(ranks: Ranks, tmp_path: Path) -> None:
    for rank, sums in enumerate(ranks.run(programs.groups_beside_gloo, tmp_path, "gloo")):
        assert sums == [float(a + a + 1) for a in (rank - 1, rank) if 0 <= a < ranks.size - 1]


def test_ranks_listen_on_the_chosen_interface_only(ranks: Ranks, tmp_path: Path) -> None:
    for found in ranks.run(programs.listeners, tmp_path):
        assert found and set(found) <= {"127.0.0.1", "::1"}, found


def test_a_group_can_be_split(ranks: Ranks, tmp_path: Path) -> None:
    half = ranks.size // 2
    parts = [range(half), range(half, ranks.size)]
    for rank, found in enumerate(ranks.run(programs.split_in_halves, tmp_path)):
        part = parts[rank >= half]
        assert found == (len(part), float(sum(part)))


def test_a_group_dropped_with_a_callback_under_way_ends(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(programs.dropped_with_a_callback, tmp_path, "gloo") == [True] * ranks.size
    assert ranks.run(programs.dropped_in_a_callback, tmp_path, "gloo") == [True] * ranks.size
    assert ranks.run(programs.subgroups, tmp_path)  # the processes are alive


@pytest.mark.slow
@pytest.mark.parametrize("imports", ["import agspeed, torch", "import torch, agspeed"])
def test_the_backend_is_registered_in_either_order_of_imports(imports: str) -> None:
    program = f"{imports}\nfrom torch import distributed\nassert 'agspeed' in distributed.Backend.backend_list"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


ALONE = """
from torch import distributed
distributed.init_process_group("agspeed", store=distributed.HashStore(), rank=0, world_size=1)
print(distributed.get_backend())
"""


def test_an_installed_package_needs_no_import(tmp_path: Path) -> None:
    env = {**os.environ, **installed(tmp_path)}
    run = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120, env=env)
    assert (run.returncode, run.stdout) == (0, "agspeed\n"), run.stderr
