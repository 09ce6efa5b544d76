# SPDX-License-Identifier: Apache-2.0
"""The end of a job on several hosts: whatever happens to its launcher, its connections, its agents or its ranks, no
process is left on any host, and the first failure is named. `fake_ssh.py` stands for ssh."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agspeed.launch import agent, frames, keeper
from tests.lint import sources
from tests.python.launch.jobs import RANK, TIMEOUT_S, WAITS, Job, wait_until

HOSTS = "relay-0:2,node1:2"
NUM_RANKS = 4


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Job(tmp_path) as job:
        yield job


def begin(job: Job, text: str = WAITS, hosts: str = HOSTS, **variables: str) -> subprocess.Popen[bytes]:
    launcher = job.start(NUM_RANKS, text, "-H", hosts, FOLDER=str(job.folder), **variables)
    wait_until(lambda: len(job.pids("rank")) == NUM_RANKS, "all ranks run")
    return launcher


def child(job: Job, number: int) -> int:
    """The launcher's child for a host: a relay that stands for ssh, or an agent."""
    assert job.launcher is not None
    found = keeper.processes()
    ancestor = job.pids("rank")[2 * number]
    while found[ancestor].parent != job.launcher.pid:
        ancestor = found[ancestor].parent
    return ancestor


def to_launcher(number: int) -> Callable[[Job], None]:
    def send(job: Job) -> None:
        assert job.launcher is not None
        job.launcher.send_signal(number)

    return send


def to_rank(rank: int, number: int = signal.SIGKILL) -> Callable[[Job], None]:
    return lambda job: os.kill(job.pids("rank")[rank], number)


def to_child(host: int, number: int = signal.SIGKILL) -> Callable[[Job], None]:
    return lambda job: os.kill(child(job, host), number)


def to_agent_behind_relay(job: Job) -> None:
    found = keeper.processes()
    os.kill(found[found[job.pids("rank")[0]].parent].parent, signal.SIGKILL)


class Case(NamedTuple):
    does: Callable[[Job], None]
    status: int
    said: str = ""
    kind: str = ""


LOST = "host {} was lost, so the job was ended: ssh: it ended by signal SIGKILL without a message; see what this says"
CASES = {
    "INT": Case(to_launcher(signal.SIGINT), 130),
    "TERM": Case(to_launcher(signal.SIGTERM), 130),
    "HUP": Case(to_launcher(signal.SIGHUP), 130),
    "TERM, ranks do not heed it": Case(to_launcher(signal.SIGTERM), 130, kind="stubborn"),
    "KILL": Case(to_launcher(signal.SIGKILL), -signal.SIGKILL),
    "KILL, ranks do not heed TERM": Case(to_launcher(signal.SIGKILL), -signal.SIGKILL, kind="stubborn"),
    "KILL of a rank": Case(to_rank(3), 137, "rank 3 on host node1 ended by signal SIGKILL, so the job was ended"),
    "SEGV of a rank": Case(to_rank(0, signal.SIGSEGV), 139, "rank 0 on host relay-0 ended by signal SIGSEGV"),
    "KILL of ssh": Case(to_child(0), 1, LOST.format("relay-0 (ranks 0 to 1)")),
    "KILL of an agent": Case(to_child(1), 1, LOST.format("node1 (ranks 2 to 3)")),
    "KILL of an agent behind ssh": Case(to_agent_behind_relay, 1, "host relay-0 (ranks 0 to 1) was lost"),
}


def cases() -> Iterator[Any]:
    for name, case in CASES.items():
        yield pytest.param(case, id=name, marks=[pytest.mark.slow] if case.kind == "stubborn" else [])


@pytest.mark.parametrize("case", list(cases()))
def test_nothing_is_left_on_any_host_and_the_first_failure_is_named(job: Job, case: Case) -> None:
    launcher = begin(job, KIND=case.kind)
    case.does(job)
    launcher.wait(TIMEOUT_S)
    job.waits_for_nothing_left()
    assert launcher.returncode == case.status, job.errors()
    assert case.said in job.errors() and job.errors().count("agspeed: ") == bool(case.said), job.errors()


def test_the_last_lines_of_the_rank_that_failed_are_printed_last(job: Job) -> None:
    text = RANK + "if rank == '2':\n    print('step 7')\n    raise SystemExit('no more data')\ntime.sleep(600)"
    launcher = job.start(NUM_RANKS, text, "-H", HOSTS, FOLDER=str(job.folder))
    assert launcher.wait(TIMEOUT_S) == 1
    job.waits_for_nothing_left()
    said = "agspeed: rank 2 on host node1 ended with status 1, so the job was ended; its last lines:\n"
    assert sorted(job.errors().partition(said)[2].splitlines()) == ["  no more data", "  step 7"], job.errors()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_job_that_still_connects_ends_too(job: Job, number: int) -> None:
    launcher = job.start(NUM_RANKS, WAITS, "-H", "node0:2,hangs:2", FOLDER=str(job.folder))
    wait_until(lambda: len(job.left()) >= 3, "both hosts have been called")
    launcher.send_signal(number)
    assert launcher.wait(TIMEOUT_S) == (-number if number == signal.SIGKILL else 130)
    job.waits_for_nothing_left()
    assert job.errors() == "" and job.pids("rank") == []


def test_a_full_pipe_keeps_no_signal_from_ending_the_job(job: Job) -> None:
    """The reader of the output reads nothing."""
    text = RANK + "while True: print('x' * 1000)"
    launcher = job.start(NUM_RANKS, text, "-H", HOSTS, stdout=subprocess.PIPE, FOLDER=str(job.folder))
    wait_until(lambda: len(job.pids("rank")) == NUM_RANKS, "all ranks run")
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(TIMEOUT_S) == 130
    job.waits_for_nothing_left()


@pytest.mark.parametrize("is_silent", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_agent_ends_its_ranks_when_its_launcher_is_lost(job: Job, is_silent: bool) -> None:
    """The launcher closes the connection, or it sends nothing for a while, as when the network is cut."""
    command = [sys.executable, *agent.words(str(sources.ROOT / "python"), is_local=True)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=job.environment)
    assert process.stdin is not None and process.stdout is not None
    link = frames.Link(os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()), 1 << 20)
    process.stdin.close()
    process.stdout.close()
    link.send(
        "job",
        {
            "command": [sys.executable, "-c", WAITS],
            "environment": {},
            "folder": "",
            "kind": "fixed",
            "key": None,
            "silence_s": 10.0 if is_silent else None,
            "num_pieces": 0,
            "probe": None,
        },
    )
    link.send("start", [{"RANK": str(rank), "FOLDER": str(job.folder)} for rank in range(2)])
    wait_until(lambda: len(job.pids("rank")) == 2, "both ranks run")
    if not is_silent:
        link.close_sink()
    assert process.wait(TIMEOUT_S) == 1
    job.waits_for_nothing_left()
    link.close()
