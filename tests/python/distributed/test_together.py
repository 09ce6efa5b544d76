# SPDX-License-Identifier: Apache-2.0
"""Ranks under DistributedDataParallel tune as one: one decision, whatever happens to one of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from agspeed import config, native
from agspeed.distributed import room as rooms
from agspeed.distributed.announcements import Announcement, Reply, ReplySlot, is_looked_at, judged
from agspeed.distributed.layouts import plan_of
from agspeed.distributed.messages import Seal
from agspeed.distributed.room import Room
from agspeed.tuning import together
from tests.python.distributed import cold_cases, random_jobs, together_cases
from tests.python.distributed.ranks import Ranks
from tests.python.support.pairs import first_of, thorough

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

_TIMEOUT_S = 240
"""Compiling on a busy machine is no hang."""
_SETTLED_LINES = 8
"""Of agspeed's Python in a settled step, at a tenth of a microsecond each, without the search for optimizers."""


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(request.param, timeout_s=_TIMEOUT_S, **random_jobs.QUICK_CHILDREN) as started:
        yield started


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[Ranks]:
    with Ranks(2, timeout_s=_TIMEOUT_S) as started:
        yield started


def assert_one_decision(results: list[dict[str, Any]]) -> None:
    first = results[0]
    for result in results:
        decided = {key: result[key] for key in ("status", "plan", "steps", "reason")}
        assert decided == {key: first[key] for key in decided}
        assert result["status"] != "tuning", f"undecided after {result['steps']} steps: {result['reason']}"
        assert torch.equal(result["weights"], first["weights"])
        assert result["hooks"] == 0, "a settled model pays for no hook"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "backend"),
    [(3, "agspeed"), *(thorough(*each) for each in ((2, "agspeed"), (2, "gloo"), (3, "gloo")))],
    indirect=["ranks"],
)
def test_ranks_decide_together_and_the_next_run_knows(ranks: Ranks, tmp_path: Path, backend: str) -> None:
    caches = [str(tmp_path / f"cache-{rank}") for rank in range(ranks.size)]
    results = ranks.run(together_cases.decided_with_caches, tmp_path, backend, caches=caches)
    assert_one_decision(results)
    assert f"{ranks.size} ranks tune together" in results[0]["reason"]
    again = [caches[0], *(str(tmp_path / f"empty-{rank}") for rank in range(1, ranks.size))]
    for known in (again, again[1:] + again[:1]):  # the decision is in the cache of the first rank, then of the last
        second = ranks.run(together_cases.decided_with_caches, tmp_path, backend, caches=known)
        assert_one_decision(second)
        assert second[0]["plan"] == results[0]["plan"]
        assert second[0]["steps"] < 40, second[0]["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", first_of(["agspeed", "gloo"], 1))
def test_the_report_shows_when_buckets_were_reduced(two_ranks: Ranks, tmp_path: Path, backend: str) -> None:
    page = tmp_path / "report.html"
    arguments = {"path": str(page), "cache": str(tmp_path / "cache")}
    (result, _) = two_ranks.run(together_cases.reported, tmp_path, backend, **arguments)
    step = result["report"]["group"]["together"]["step"]
    assert step["gradients_s"] > 0 and step["communication_begun_s"] < step["communication_done_s"]
    assert step["exposed_s"] == max(step["communication_done_s"] - step["gradients_s"], 0)
    assert sum(bucket["bytes"] for bucket in step["buckets"]) == 4 * (64 * 64 + 64 + 64 * 4 + 4 + 2 * 64)
    for bucket in step["buckets"]:
        assert bucket["ready_s"] >= 0
        if backend == "agspeed":  # which records its reductions
            assert bucket["begun_s"] < bucket["done_s"]
        else:
            assert bucket["begun_s"] is None and bucket["done_s"] is None
    assert "came after its last gradient" in " ".join(result["text"].split())
    assert 'data-chart="One step"' in page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    first_of(
        [
            together_cases.accumulating,
            together_cases.one_rank_does_more,
            together_cases.one_rank_looks_first,
            together_cases.paused_at_one_rank,
            together_cases.adversarial,
            together_cases.one_rank_has_hooks,
            together_cases.one_rank_has_more_groups,
            together_cases.copied_while_tuning,
        ],
        1,
    ),
    ids=lambda case: case.__name__,
)
def test_one_decision_whatever_ranks_do_between_steps(two_ranks: Ranks, tmp_path: Path, case: Any) -> None:
    results = two_ranks.run(case, tmp_path, cache=str(tmp_path / "cache"))
    assert_one_decision(results)
    assert all(result.get("same", True) for result in results)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3], indirect=True)
def test_ranks_of_one_host_compile_once(ranks: Ranks, tmp_path: Path) -> None:
    results = ranks.run(together_cases.compiled_in_children, tmp_path, cache=str(tmp_path / "cache"))
    assert_one_decision(results)
    assert [result["jobs"] for result in results] == [["aot"], *([] for _ in results[1:])]
    for result in results:
        arm = result["arms"]["aot"]
        assert arm["state"] == "ready" and arm["background_seconds"] > 0, arm


@pytest.mark.slow
@pytest.mark.parametrize("arm", first_of(["native", "eager", "eager/b0.25-1"], 1))
def test_settled_steps_ask_no_store_and_do_no_more_than_without_a_group(
    two_ranks: Ranks, tmp_path: Path, arm: str
) -> None:
    for found in two_ranks.run(together_cases.work_of_settled_steps, tmp_path, cache=str(tmp_path / "cache"), arm=arm):
        group, alone = found["work"]["group"], found["work"]["alone"]
        assert found["plan"] == plan_of(arm), found["reason"]
        assert group["requests"] == []
        # Now and then steps are seen, for the report and by the guard; the others are counted down to them.
        assert statistics.median(group["lines"]) <= min(statistics.median(alone["lines"]), _SETTLED_LINES), group


@pytest.mark.thorough
def test_two_models_in_turns_decide_each(two_ranks: Ranks, tmp_path: Path) -> None:
    results = two_ranks.run(together_cases.two_models, tmp_path, cache=str(tmp_path / "cache"))
    for index in range(2):
        assert_one_decision([result[index] for result in results])


@pytest.mark.parametrize("what", first_of(["load", "capture"], 1))
def test_a_rank_may_stand_still_for_longer_than_a_collective_may_take(
    two_ranks: Ranks, tmp_path: Path, what: str
) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "what": what, "seconds": 5.0, "timeout_s": 2.5}
    results = two_ranks.run(together_cases.slower_than_the_group_allows, tmp_path, **arguments)
    assert_one_decision(results)
    for result in results if what == "load" else ():
        arm = result["arms"]["native"]
        assert arm["state"] == "skipped", arm
        assert "may stand still for 1.0 s where collectives run out of time after 2.5 s (rank " in arm["reason"]


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_a_cold_cache_of_inductor_at_one_rank_costs_that_arm_alone(ranks: Ranks, tmp_path: Path) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "timeout_s": 20.0, "seconds": 8.5}
    for result in ranks.run(cold_cases.inductor_cold_at_one_rank, tmp_path, **arguments):
        arm = result["arms"]["inductor"]
        assert arm["state"] == "skipped", arm
        assert "8.0 s" in arm["reason"] and "20 s (rank " in arm["reason"]
        assert result["plan"] == "aot", result["reason"]
        assert torch.equal(result["weights"], result["expected"])


def test_a_rank_that_evaluates_alone_waits_for_no_other(two_ranks: Ranks, tmp_path: Path) -> None:
    results = two_ranks.run(together_cases.evaluating_at_one_rank, tmp_path, cache=str(tmp_path / "cache"))
    assert_one_decision(results)
    assert results[0]["begun"], "no rank stood still"
    assert all(flag for result in results for flag in result["begun"])


def test_ranks_share_compiles_only_where_their_compilers_share_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> str:
        group = SimpleNamespace(rank=0, option=lambda name: None, why_layouts_stay=lambda: None)
        return together._announcement(nn.Linear(2, 2), group, config.resolve()).home  # type: ignore[arg-type]

    shared = home()
    assert home() == shared
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/another")
    assert home() != shared


@pytest.mark.thorough
def test_groups_of_one_job_decide_each_for_itself(tmp_path: Path) -> None:
    with Ranks(4, timeout_s=_TIMEOUT_S) as ranks:
        results = ranks.run(together_cases.two_groups, tmp_path, cache=str(tmp_path / "cache"))
    assert_one_decision([of_all for _, of_all in results])
    for pair in (results[:2], results[2:]):
        assert_one_decision([of_half for of_half, _ in pair])
    states = [of_half["arms"]["native"]["state"] for of_half, _ in results]
    assert states[:2] == ["ready", "ready"] and states[2:] == ["failed", "failed"], "the other half lost it"
    for _, of_all in results:
        assert of_all["arms"]["native"]["state"] == "failed"
        assert "(rank 2 on " in of_all["arms"]["native"]["reason"]
    assert "2 ranks tune together" in results[0][0]["reason"] and "4 ranks tune together" in results[0][1]["reason"]


def test_a_candidate_refused_at_one_rank_is_out_for_all(two_ranks: Ranks, tmp_path: Path) -> None:
    results = two_ranks.run(together_cases.refused_at_one_rank, tmp_path, cache=str(tmp_path / "cache"))
    assert_one_decision(results)
    for result in results:
        assert result["arms"]["native"]["state"] == "rejected"
        assert "wrong here (rank 1 on " in result["arms"]["native"]["reason"]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (together_cases.settings_differ, ["rank 1 on ", "another setting numerics than rank 0", "'exact'"]),
        (together_cases.restored_at_one_rank, ["rank 1 on ", "restored there"]),
        thorough(together_cases.left_at_one_rank, ["rank 1 on ", "tunes no longer: injected: another device"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_ranks_that_do_not_fit_train_on_eagerly(two_ranks: Ranks, tmp_path: Path, case: Any, words: list[str]) -> None:
    results = two_ranks.run(case, tmp_path, cache=str(tmp_path / "cache"))
    assert torch.equal(results[0]["weights"], results[1]["weights"])
    assert [result["plan"] for result in results] == ["eager", "eager"]
    assert [result["hooks"] for result in results] == [0, 0], "no rank goes on exchanging records"
    for word in words:
        assert word in results[0]["reason"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "key", "words"),
    [
        thorough("agspeed", {}, "ValueError"),
        ("gloo", {"AGSPEED_JOB_KEY": "a key of sixteen bytes"}, "the job key"),
    ],
    ids=["without a key", "with one"],
)
def test_a_reply_of_a_stranger_is_refused_and_deletes_nothing(
    tmp_path: Path, backend: str, key: dict[str, str], words: str
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("kept")
    with Ranks(2, timeout_s=_TIMEOUT_S, **key) as ranks:
        arguments = {"cache": str(tmp_path / "cache"), "victim": str(victim)}
        results = ranks.run(together_cases.stranger_in_the_store, tmp_path, backend, **arguments)
        assert_one_decision(ranks.run(together_cases.decided, tmp_path, backend, cache=str(tmp_path / "cache")))
    assert (victim / "file").read_text() == "kept"
    assert torch.equal(results[0]["weights"], results[1]["weights"])
    assert [result["plan"] for result in results] == ["eager", "eager"]
    assert words in results[1]["reason"]


def test_a_rank_without_agspeed_is_named(two_ranks: Ranks, tmp_path: Path) -> None:
    (state, reason), _ = two_ranks.run(together_cases.one_rank_is_plain, tmp_path, cache=str(tmp_path / "cache"))
    assert state == "eager"
    assert reason.startswith("rank 1: no agspeed.optimize there")


@pytest.mark.parametrize("when", first_of(["before", "a block, before"], 1))
def test_modules_sharded_later_train_on_eagerly_and_say_which(two_ranks: Ranks, tmp_path: Path, when: str) -> None:
    for status, without, with_agspeed in two_ranks.run(
        together_cases.sharded, tmp_path, cache=str(tmp_path), when=when
    ):
        assert status.startswith("eager: "), status
        if when != "a block, before":
            assert "its parameters are sharded (DTensor), by fully_shard" in status
            assert "first those of 0.0 (Linear)" in status
        assert torch.equal(with_agspeed, without)


@pytest.mark.slow
def test_a_killed_rank_is_an_error_of_the_others(tmp_path: Path) -> None:
    """The error comes from the end of the process, and not from the time limit of an operation."""
    started = Ranks(2, timeout_s=_TIMEOUT_S, AGSPEED_PEER_TIMEOUT_MS="3000")
    with started as ranks, pytest.raises((AssertionError, EOFError, ConnectionError)):
        ranks.run(together_cases.killed_while_tuning, tmp_path, folder=str(tmp_path))
    kind, _, error = (tmp_path / "raised").read_text().partition(" ")
    assert kind == "DistBackendError"
    assert "rank 1 is lost to rank 0" in error


@pytest.mark.thorough
def test_random_jobs_end_alike_or_with_an_error_that_names_the_dead(tmp_path: Path) -> None:
    """More of them: see random_jobs.py."""
    group = random_jobs.Group(2)
    try:
        for seed in range(2):
            folder = tmp_path / f"run-{seed}"
            folder.mkdir()
            plan = random_jobs.Plan.draw(seed, 2)
            print(plan)
            group.run(plan, folder)
        assert group.num_with_children > 0, "no compile child was seen"
    finally:
        group.close()


def announcement(rank: int, **fields: str) -> Announcement:
    return Announcement(f"rank {rank} on node{rank}", {"torch": "2.11", "model": "Net", **fields}, {"threads": "1"}, "")


def test_the_first_difference_is_named_with_both_values() -> None:
    names, refused = judged([announcement(0), announcement(1), announcement(2, torch="2.12")])
    assert names == ["rank 0 on node0", "rank 1 on node1", "rank 2 on node2"]
    assert refused == "rank 2 on node2 has another torch than rank 0 on node0: 2.12 and 2.11"
    assert judged([announcement(0), announcement(1)]) == (names[:2], None)
    assert judged([announcement(0), None, None])[1] == (
        "rank 1, rank 2: no agspeed.optimize there, or AGSPEED_DISABLE is set"
    )


@pytest.mark.parametrize("replied", [2, 3, 4, 6, 64])
def test_a_reply_holds_at_the_same_backward_for_early_and_late_ranks(replied: int) -> None:
    room = Room(torch.distributed.HashStore(), Seal(b"", "test"))
    first, late, later = (ReplySlot(room, 2) for _ in range(3))
    for backward in range(1, replied):
        assert not any(slot.of_backward(backward) for slot in (first, late, later))
    assert first.of_backward(replied) is None
    assert later.of_backward(replied) is None
    reply = Reply.made(replied + 1, [announcement(0), announcement(1)], ["rank 0", "rank 1"], None)
    first.put(Reply.parse(asdict(reply), 2))
    assert late.of_backward(replied) is None, "found in the backward in which it was written"
    for slot in (first, late, later):
        found = slot.of_backward(replied + 1)
        assert found is not None and (found.names, found.backward) == (["rank 0", "rank 1"], replied + 1)


class SilentStore:
    """As one whose host cannot be reached any longer."""

    def check(self, keys: list[str]) -> bool:
        time.sleep(5)
        return False


def test_a_store_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "_STORE_SECONDS", 0.1)
    with pytest.raises(TimeoutError, match=r"the job's store has not answered for 0\.1 s"):
        ReplySlot(Room(SilentStore(), Seal(b"", "test")), 2).of_backward(3)


def test_few_backwards_look_for_a_reply() -> None:
    assert [number for number in range(100) if is_looked_at(number)] == [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96]
