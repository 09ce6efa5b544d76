# SPDX-License-Identifier: Apache-2.0
"""Ranks of one host compile once: the lowest rank compiles and the others take its answer, or compile if it is gone."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agspeed.backends import CompileOptions
from agspeed.distributed.announcements import HostGroup
from agspeed.tuning.child import host_compiles
from agspeed.tuning.child.host_compiles import Claim, HostCompiles

OPTIONS = CompileOptions(num_threads=1)
ANSWER = {"state": "ready", "reason": "", "compile_seconds": 1.5}


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def claim_of(*, is_first: bool, key: str = "graph", token: str = "job") -> Claim:
    claim = HostCompiles(HostGroup(token, is_first)).claim(key, "aot", OPTIONS)
    assert claim is not None
    return claim


def in_another_process(do: Callable[[], None]) -> Callable[[], None]:
    """Runs `do` in another process, which then waits. Returns when `do` has returned. Returns a function that ends
    it."""
    done, go_on = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go_on[1])
        do()
        os.write(done[1], b"x")
        os.read(go_on[0], 1)
        os._exit(0)
    os.close(done[1])
    assert os.read(done[0], 1) == b"x"

    def end() -> None:
        os.close(go_on[1])
        os.waitpid(pid, 0)

    return end


def test_the_lowest_rank_compiles_and_the_others_have_its_answer() -> None:
    first, kept = claim_of(is_first=True), claim_of(is_first=False)
    assert kept.look() is None and not kept.is_mine, "the lowest has not begun"
    assert first.look() is None and first.is_mine
    first.tell(ANSWER)
    assert kept.look() == ANSWER and not kept.is_mine
    assert claim_of(is_first=True).look() == ANSWER


def test_another_rank_compiles_where_the_first_ends_without_an_answer() -> None:
    end = in_another_process(lambda: claim_of(is_first=True).look() and None)
    other = claim_of(is_first=False)
    assert other.look() is None and not other.is_mine, "the first compiles"
    end()
    assert other.look() is None and other.is_mine


def test_others_wait_for_a_lowest_rank_that_does_not_begin_only_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    other = claim_of(is_first=False)
    assert other.look() is None and not other.is_mine
    monkeypatch.setattr(host_compiles, "_START_S", 0.0)
    assert other.look() is None and other.is_mine


def test_a_fork_of_the_compiling_rank_holds_no_lock(temporary: Path) -> None:
    """A data loader's worker may outlive its rank for a moment."""

    def compile_and_fork() -> None:
        claim_of(is_first=True).look()
        if (pid := os.fork()) == 0:
            time.sleep(60)
            os._exit(0)
        (temporary / "worker").write_text(str(pid))

    in_another_process(compile_and_fork)()
    other = claim_of(is_first=False)
    try:
        assert other.look() is None and other.is_mine
    finally:
        os.kill(int((temporary / "worker").read_text()), signal.SIGKILL)


def test_answers_of_other_jobs_graphs_and_damaged_ones_are_not_taken(temporary: Path) -> None:
    claim = claim_of(is_first=True)
    claim.look()
    claim.tell(ANSWER)
    assert claim_of(is_first=True, key="another graph").look() is None
    assert claim_of(is_first=True, token="another job").look() is None
    for path in temporary.rglob("*.json"):
        path.write_text('{"state": ')
    assert claim_of(is_first=True).look() is None


def test_nothing_is_shared_without_a_folder_of_ones_own(temporary: Path) -> None:
    host = HostCompiles(HostGroup("job", is_first=True))
    assert host.claim("graph", "aot", OPTIONS) is not None
    [name] = [path.name for path in temporary.iterdir()]
    host.close()
    (temporary / name).symlink_to(temporary)
    assert HostCompiles(HostGroup("job", is_first=True)).claim("graph", "aot", OPTIONS) is None


def test_what_was_shared_is_gone_at_the_end(temporary: Path) -> None:
    host = HostCompiles(HostGroup("job", is_first=True))
    claim = host.claim("graph", "aot", OPTIONS)
    assert claim is not None
    claim.look()
    host.close()
    assert not claim.is_mine
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("token", ["x/../../victim", "../victim", "/victim", "", "x\0y", "." * 300])
def test_a_strangers_token_names_no_folder(temporary: Path, token: str) -> None:
    """The folder with a file that the token would name is left alone."""
    shared, victim = temporary / "shared", temporary / "victim"
    for folder in (shared, victim, shared / f"agspeed-host-{os.getuid()}-x"):
        folder.mkdir()
    (victim / "file").write_text("kept")
    tempfile.tempdir = str(shared)
    host = HostCompiles(HostGroup(token, is_first=True))
    claim = host.claim("graph", "aot", OPTIONS)
    assert claim is not None
    claim.look()
    claim.tell(ANSWER)
    host.close()
    assert (victim / "file").read_text() == "kept"
    assert [path.name for path in shared.iterdir()] == [f"agspeed-host-{os.getuid()}-x"]


def test_files_that_ranks_do_not_make_are_left_alone(temporary: Path) -> None:
    host = HostCompiles(HostGroup("job", is_first=True))
    claim = host.claim("graph", "aot", OPTIONS)
    assert claim is not None
    claim.look()
    [folder] = temporary.iterdir()
    (folder / "thesis.tex").write_text("kept")
    host.close()
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "answer",
    [
        "[" * 100_000,
        '{"state": "gone", "reason": ""}',
        '{"state": "ready", "reason": 5}',
        '{"state": "ready", "reason": "", "compile_seconds": "long"}',
        '{"state": "ready", "reason": "", "proof": {"code_digest": "1", "gate": {}, "layouts": [["x", 1]]}}',
        '{"state": "ready", "reason": "", "twins": ["../aot"]}',
        '{"state": "ready", "reason": "", "vector_isa": {"avx": "yes"}}',
        json.dumps({**ANSWER, "reason": "x" * (1 << 21)}),
    ],
    ids=lambda answer: answer[:70],
)
def test_what_is_no_answer_is_not_taken(temporary: Path, answer: str) -> None:
    claim = claim_of(is_first=True)
    claim.look()
    claim.tell(ANSWER)
    for path in temporary.rglob("*.json"):
        path.write_text(answer)
    assert claim_of(is_first=True).look() is None


def test_a_fork_leaves_what_ranks_share(temporary: Path) -> None:
    host = HostCompiles(HostGroup("job", is_first=True))
    claim = host.claim("graph", "aot", OPTIONS)
    assert claim is not None
    claim.look()
    claim.tell(ANSWER)
    in_another_process(host.close)()
    other = claim_of(is_first=False)
    assert other.look() == ANSWER
    host.close()


def test_ranks_with_a_host_and_a_cache_of_their_own_share_nothing() -> None:
    homes = ["node0 /cache", "node1 /cache", "node0 /cache", "node2 /cache", "node1 /cache"]
    found = [HostGroup.of(rank, "job", homes) for rank in range(len(homes))]
    assert [host_group.is_first if host_group else None for host_group in found] == [True, True, False, None, False]
