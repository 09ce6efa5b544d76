# SPDX-License-Identifier: Apache-2.0
"""Real jobs of three ranks name the rank that holds the others up, and the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agspeed import native
from agspeed.distributed.stragglers.sentences import sentence
from tests.python.distributed.ranks import Ranks
from tests.python.distributed.stragglers import straggler_cases

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]


@pytest.fixture(scope="module")
def three_ranks() -> Iterator[Ranks]:
    with Ranks(3, timeout_s=240) as started:
        yield started


def test_a_rank_that_sleeps_in_its_forward_is_named_to_all_ranks(three_ranks: Ranks, tmp_path: Path) -> None:
    found = three_ranks.run(straggler_cases.trained, tmp_path, cache=str(tmp_path / "cache"), slow=1)
    (line,) = found[0]["heard"]
    assert re.search(r"rank 1 \(.+\) computes \d+ % longer since step \d+$", line), line
    for result in found:
        ((kind, rank),) = [(finding.kind, finding.rank) for finding in result["verdict"].lasting]
        assert (kind, rank) == ("compute", 1)
        told = sentence(result["verdict"].lasting[0])
        assert told in result["status"] and told in " ".join(result["report"].split())
        assert 'agspeed_straggler_share{kind="compute",rank="1",' in result["prometheus"]


def test_a_rank_that_waits_for_its_input_is_named_until_it_no_longer_does(three_ranks: Ranks, tmp_path: Path) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "slow": 2, "where": "input", "until": "ended"}
    found = three_ranks.run(straggler_cases.trained, tmp_path, "gloo", **arguments)
    begun, ended = found[0]["heard"]
    assert re.search(r"rank 2 \(.+\) waits for its input for \d+ % of each step since step \d+$", begun), begun
    assert re.search(r"rank 2 \(.+\) no longer holds the others up: \d+ % of each step from step \d+ to", ended), ended
    for result in found:
        assert result["verdict"].lasting == ()
        assert [(finding.kind, finding.rank) for finding in result["verdict"].ended] == [("input", 2)]


def test_ranks_are_not_compared_if_the_setting_is_zero(three_ranks: Ranks, tmp_path: Path) -> None:
    for result in three_ranks.run(straggler_cases.unwatched, tmp_path, cache=str(tmp_path / "cache")):
        assert result == {"verdict": None, "report": None}
