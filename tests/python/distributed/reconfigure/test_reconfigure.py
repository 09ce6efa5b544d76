# SPDX-License-Identifier: Apache-2.0
"""Groups that get other members by torch's reconfigure functions, which torch has from 2.14 on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed

from agspeed import native
from tests.python.distributed.ranks import Ranks
from tests.python.distributed.reconfigure import reconfigure_cases, reconfigure_program

pytestmark = [
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
    pytest.mark.skipif(
        not hasattr(distributed, "_reconfigure"), reason=f"torch {torch.__version__} lacks the functions"
    ),
]
SIZE = 3
_WAIT_S = 400
"""Loading torch takes long on a busy machine."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(SIZE) as started:
        yield started


def test_a_group_takes_the_members_and_ranks_of_the_handles(ranks: Ranks, tmp_path: Path) -> None:
    found = ranks.run(reconfigure_cases.sums_of_groups, tmp_path, folder=str(tmp_path))
    for number, groups in enumerate(found):
        alone, reversed_order, *without_first, by_set = groups
        assert alone == (0, 1, 2.0**number)
        assert reversed_order == (SIZE - 1 - number, SIZE, 7.0)
        assert without_first == ([(number - 1, SIZE - 1, 6.0)] if number else [])
        assert by_set[1:] == (SIZE, 7.0)
    assert sorted(groups[-1][0] for groups in found) == list(range(SIZE)), "a set numbers the ranks in some order"


def test_parts_of_a_reconfigured_group_are_made_as_of_others(ranks: Ranks, tmp_path: Path) -> None:
    found = ranks.run(reconfigure_cases.part_of_a_new_group, tmp_path, folder=str(tmp_path))
    assert found == [[2.0, 2.0], [2.0, 2.0], [1.0, 1.0]]


def test_wrong_calls_raise_sentences_and_leave_the_group_usable(ranks: Ranks, tmp_path: Path) -> None:
    for found in ranks.run(reconfigure_cases.errors, tmp_path, folder=str(tmp_path)):
        assert (found.pop("fixed supports"), found.pop("supports")) == ("False", "True")
        words = {
            "fixed": "DistBackendError: agspeed: this process group keeps its members; make it by",
            "fixed reconfigured": "DistBackendError: agspeed: this process group keeps its members; make it by",
            "without members": "DistBackendError: agspeed: the process group has no members: call reconfigure()",
            "record without members": "DistBackendError: agspeed: the process group has no members",
            "none": "ValueError: agspeed: reconfigure(): there is no handle: pass the handles of all members",
            "repeated": "ValueError: agspeed: reconfigure(): 1 of 4 handles are repeated",
            "others'": "is not among the 2 handles",
            "gloo's": "comes from another backend; all members need the backend agspeed",
            "used": "DistBackendError: agspeed: reconfigure(): the uuid 1 was already used; pass one that",
            "used otherwise": "DistBackendError: agspeed: reconfigure(): the uuid 1 was already used for other members",
            "hint": "ValueError: agspeed: reconfigure() knows no hint 'color'; pass no hints",
        }
        assert found.keys() == words.keys()
        for name, text in found.items():
            assert words[name] in text, name


def test_a_member_that_does_not_come_is_named_and_the_next_group_is_made(ranks: Ranks, tmp_path: Path) -> None:
    *waiting, late = ranks.run(reconfigure_cases.a_member_does_not_come, tmp_path, folder=str(tmp_path))
    assert late == {"sum": "7.0"}
    for found in waiting:
        assert "DistBackendError" in found["missing"] and "has not joined the job" in found["missing"]
        assert "the process group has no members" in found["afterwards"]
        assert found["sum"] == "7.0"
    assert "rank 2 has not joined" in waiting[0]["missing"]


def test_an_aborted_group_gets_members_again(ranks: Ranks, tmp_path: Path) -> None:
    for found in ranks.run(reconfigure_cases.after_abort, tmp_path, folder=str(tmp_path)):
        assert "abort() was called" in found["aborted"]
        assert found["sum"] == "7.0"


@pytest.mark.slow
@pytest.mark.timeout(_WAIT_S + 60)
def test_training_goes_on_with_fewer_and_with_new_members(tmp_path: Path) -> None:
    server = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    command = [sys.executable, str(Path(reconfigure_program.__file__)), str(tmp_path)]
    variables = os.environ | {"AGSPEED_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    started = {
        name: subprocess.Popen([*command, name, str(server.port)], env=variables, stderr=subprocess.PIPE, text=True)
        for name in "abcd"
    }
    try:
        errors = {name: process.communicate(timeout=_WAIT_S)[1] for name, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    assert {name: process.returncode for name, process in started.items()} == {"a": 0, "b": 0, "c": 9, "d": 0}, errors
    model, optimizer = reconfigure_program.make()
    for step in range(reconfigure_program.NUM_STEPS):
        reconfigure_program.train(model, optimizer, step, 0, 1)
    found = {name: torch.load(tmp_path / f"{name}.pt") for name in "abd"}
    for weights in found.values():
        torch.testing.assert_close(weights, found["a"], rtol=0, atol=0)
        torch.testing.assert_close(weights, model.state_dict(), rtol=1e-9, atol=1e-12)
