# SPDX-License-Identifier: Apache-2.0
"""Torch's own tools, profilers and DDP's logging data, show groups of agspeed as they show groups of Gloo."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agspeed import native
from tests.python.distributed import observed
from tests.python.distributed.ranks import Ranks

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

SIZE = 2


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(SIZE) as started:
        yield started


OPERATIONS = {
    "all_reduce": [("all_reduce", [[2, 3]])],
    "coalesced": [("all_reduce", [[2], [3]])],
    "broadcast": [("broadcast", [[4]])],
    "reduce": [("reduce", [[4]])],
    "gathers": [("all_gather", [[2]]), ("gather", [[3]])],
    "barrier": [("barrier", [])],
    "batch": [("recv", [[2]]), ("send", [[2]])],
    "sparse": [("sparse_all_reduce", [[3, 3]])],
}
BY_RANK = {
    "scatter": [[("scatter", [[5]] * SIZE)], [("scatter", [])]],
    "messages": [[("send", [[7]]), ("send", [[8]])], [("recv", [[7]]), ("recvAnySource", [[8]])]],
}


@pytest.mark.parametrize("profiler", ["torch.profiler", "torch.autograd.profiler"])
def test_profilers_show_operations_as_asynchronous_events(ranks: Ranks, tmp_path: Path, profiler: str) -> None:
    names = [*OPERATIONS, *BY_RANK]
    for rank, found in enumerate(ranks.run(observed.events, tmp_path, profiler=profiler, operations=names)):
        expected = OPERATIONS | {name: events[rank] for name, events in BY_RANK.items()}
        assert found == {name: [(event, True, shapes) for event, shapes in expected[name]] for name in names}


def test_events_end_without_a_wait(ranks: Ranks, tmp_path: Path) -> None:
    for found in ranks.run(observed.events_after_the_call, tmp_path, profiler="torch.autograd.profiler"):
        assert found == [("all_reduce", True, [[2, 3]])]


def test_ddp_logs_the_name_of_the_backend(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(observed.logged_backend, tmp_path) == ["agspeed"] * SIZE
    assert ranks.run(observed.logged_backend, tmp_path, "gloo") == ["gloo"] * SIZE
