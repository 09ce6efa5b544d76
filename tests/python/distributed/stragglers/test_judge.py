# SPDX-License-Identifier: Apache-2.0
"""The judge names the rank that holds the others up, and says nothing about quiet jobs. Windows are generated."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random

import pytest

from agspeed.distributed.stragglers.judge import Finding, Judge
from agspeed.distributed.stragglers.sentences import sentence
from tests.python.distributed.stragglers.generated_windows import Job, Straggling

_SEED = int(os.environ.get("AG_TEST_SEED", "11"))
_IS_THOROUGH = os.environ.get("AG_TEST_THOROUGH") == "1"
_QUIET_WINDOWS = 200_000 if _IS_THOROUGH else 5_000
_FIRST = 20
"""The first round with a straggler."""


def judged(job: Job, seed: int, num_rounds: int, straggling: Straggling | None = None) -> list[Finding]:
    """Returns the findings that begin or end in a job's first rounds, in order."""
    judge = Judge()
    rounds = itertools.islice(job.rounds(random.Random(seed), straggling), num_rounds)
    return [change for windows in rounds for change in judge.add(windows)]


def test_quiet_jobs_with_noise_give_no_line() -> None:
    chance, num_windows, found = random.Random(_SEED), 0, []
    while num_windows < _QUIET_WINDOWS:
        job, seed = Job.drawn(chance), chance.randrange(1 << 30)
        found += [(job, seed, sentence(change)) for change in judged(job, seed, 150)]
        num_windows += 150 * job.num_ranks
    assert len(found) <= (4 if _IS_THOROUGH else 0), f"seed {_SEED}: {found[:3]}"


def test_nineteen_of_twenty_injected_stragglers_are_named() -> None:
    chance, missed = random.Random(_SEED), []
    for number in range(20):
        kind = ("compute", "host", "input", "rail", "slow host")[number % 5]
        job = Job.drawn(chance, most_noise=0.03)
        if kind == "slow host":
            job = dataclasses.replace(job, num_ranks=chance.choice([4, 8]))
        least = {"input": 0.25, "rail": 0.35}.get(kind, 0.14)
        straggling = Straggling(kind, chance.randrange(job.num_ranks), _FIRST, chance.uniform(least, 0.6))
        seed = chance.randrange(1 << 30)
        found = judged(job, seed, 2 * _FIRST, straggling)
        expected = ("host", straggling.rank // 2 * 2) if kind == "slow host" else (kind, straggling.rank)
        if [(each.kind, each.rank) for each in found] != [expected]:
            missed.append((straggling, job, seed, found))
    assert len(missed) <= 1, f"seed {_SEED}: {missed}"


QUIET = Job(num_ranks=4, step_s=0.1, input_s=0.001, network_s=0.02, noise=0.01, pauses=0.0, imbalance=0.0)


@pytest.mark.parametrize(
    ("kind", "amount", "share", "begins", "ends"),
    [
        (
            "compute",
            0.15,
            0.15,
            "rank 1 (node0) computes 15 % longer since step 2,100",
            "rank 1 (node0) no longer holds the others up: 15 % longer from step 2,100 to step 4,600",
        ),
        (
            "host",
            0.5,
            0.5,
            "rank 1 (node0) computes 50 % longer since step 2,100, because other processes use its host's processors",
            "rank 1 (node0) no longer holds the others up: 50 % longer from step 2,100 to step 4,600",
        ),
        (
            "input",
            0.5,
            0.3,
            "rank 1 (node0) waits for its input for 30 % of each step since step 2,100",
            "rank 1 (node0) no longer holds the others up: 30 % of each step from step 2,100 to step 4,600",
        ),
        (
            "rail",
            0.4,
            0.6,
            "rail eth1 of rank 1 (node0) carries 60 % of its rate since step 2,100",
            "rail eth1 of rank 1 (node0) no longer holds the others up: 60 % of its rate from step 2,100 to step 4,600",
        ),
    ],
    ids=["compute", "host", "input", "rail"],
)
def test_a_finding_gives_one_line_when_it_begins_and_one_when_it_ends(
    kind: str, amount: float, share: float, begins: str, ends: str
) -> None:
    straggling = Straggling(kind, 1, _FIRST, amount, end_round=_FIRST + 20)
    found = judged(QUIET, _SEED, 3 * _FIRST, straggling)
    assert [change.share for change in found] == pytest.approx([share, share], abs=0.04), f"seed {_SEED}"
    lines = [sentence(dataclasses.replace(change, share=share)) for change in found]
    assert lines == [begins, ends], f"seed {_SEED}"


@pytest.mark.parametrize("input_s", [0.0, 0.1])
def test_a_slow_host_gives_one_line_although_all_its_work_is_slower(input_s: float) -> None:
    job = dataclasses.replace(QUIET, num_ranks=8, input_s=input_s)
    found = judged(job, _SEED, 3 * _FIRST, Straggling("slow host", 5, _FIRST, 0.4, end_round=_FIRST + 20))
    assert [change.share for change in found] == pytest.approx([0.4, 0.4], abs=0.04), f"seed {_SEED}"
    assert [sentence(dataclasses.replace(change, share=0.4)) for change in found] == [
        "all 2 ranks of node2 compute 40 % longer since step 2,100",
        "all 2 ranks of node2 no longer hold the others up: 40 % longer from step 2,100 to step 4,600",
    ], f"seed {_SEED}"


def test_a_host_whose_processors_others_use_is_named_with_the_reason() -> None:
    judge, found = Judge(), []
    for windows in itertools.islice(QUIET.rounds(random.Random(_SEED), Straggling("slow host", 1, 0, 0.5)), 20):
        starved = [dataclasses.replace(each, starved=0.35 if each.host == "node0" else 0.01) for each in windows]
        found += [sentence(dataclasses.replace(change, share=0.5)) for change in judge.add(starved)]
    assert found == [
        "all 2 ranks of node0 compute 50 % longer since step 100, because other processes use their host's processors"
    ], f"seed {_SEED}"


def test_a_rank_that_is_slower_than_its_slow_host_is_named_beside_it() -> None:
    judge, found = Judge(), []
    job = dataclasses.replace(QUIET, num_ranks=6)
    for windows in itertools.islice(job.rounds(random.Random(_SEED), Straggling("slow host", 3, 0, 0.5)), 20):
        longer = windows[3].compute_s + 0.05
        found += judge.add([*windows[:3], dataclasses.replace(windows[3], compute_s=longer, wait_s=0), *windows[4:]])
    assert [(each.kind, each.rank, each.num_ranks) for each in found] == [("compute", 3, 1), ("host", 2, 2)]


def test_nothing_is_judged_while_a_rank_tries_candidates() -> None:
    judge = Judge()
    for windows in itertools.islice(QUIET.rounds(random.Random(_SEED), Straggling("compute", 1, 0, 2.0)), 40):
        tuning = [dataclasses.replace(window, is_tuning=window.host == "node1") for window in windows]
        assert judge.add(tuning) == []
    assert judge.num_rounds == 0 and judge.findings == []


def test_two_slow_ranks_of_four_are_both_named() -> None:
    judge = Judge()
    first = QUIET.rounds(random.Random(_SEED), Straggling("compute", 1, 0, 0.5))
    found = []
    for windows in itertools.islice(first, 20):
        twin = dataclasses.replace(windows[1], host="node1", rails=windows[3].rails)
        found += judge.add([*windows[:3], twin])
    assert [(finding.kind, finding.rank) for finding in found] == [("compute", 1), ("compute", 3)], f"seed {_SEED}"


def test_a_rank_that_computes_longer_without_making_others_wait_is_not_named() -> None:
    judge = Judge()
    for windows in itertools.islice(QUIET.rounds(random.Random(_SEED), Straggling("compute", 1, 0, 0.5)), 40):
        waiting = [dataclasses.replace(window, wait_s=0.03) for window in windows]
        assert judge.add(waiting) == []
