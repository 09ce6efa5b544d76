# SPDX-License-Identifier: Apache-2.0
"""The end of a job of `agspeed run`: whatever happens to its launcher or its ranks, no process is left, and the rank
that failed first is named."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agspeed.launch import keeper
from tests.python.launch.jobs import RANK, TIMEOUT_S, WAITS, Job, wait_until
from tests.python.support.pairs import every

WRITES = RANK + "while True: print('x' * 1000)"
NUM_RANKS = 3


@pytest.fixture
def job(tmp_path: Path):
    with Job(tmp_path) as job:
        yield job


def begin(job: Job, text: str = WAITS, **options) -> subprocess.Popen[bytes]:
    launcher = job.start(NUM_RANKS, text, FOLDER=str(job.folder), **options)
    wait_until(lambda: len(job.pids("rank")) == NUM_RANKS, "all ranks run")
    return launcher


def nothing_is_left(job: Job) -> None:
    """Asserts that no process is left: at once if the launcher has exited by itself, and after a while otherwise."""
    assert job.launcher is not None
    if job.launcher.wait(TIMEOUT_S) >= 0:
        assert job.left() == []
    wait_until(lambda: not job.left(), "no process is left")


def test_nothing_has_more_than_five_seconds() -> None:
    assert keeper.GRACE_S + keeper._KILLED_S < 5


class Case(NamedTuple):
    does: Callable[[Job], None]
    status: int
    said: str = ""
    kind: str = ""


def to_launcher(*numbers: int) -> Callable[[Job], None]:
    def send(job: Job) -> None:
        assert job.launcher is not None
        for number in numbers:
            job.launcher.send_signal(number)

    return send


def to_ranks(*ranks: int, number: int = signal.SIGKILL) -> Callable[[Job], None]:
    def send(job: Job) -> None:
        for rank in ranks:
            os.kill(job.pids("rank")[rank], number)

    return send


def to_two_ranks(job: Job) -> None:
    """Kills one rank, waits until it has died, and kills another."""
    ranks = job.pids("rank")
    to_ranks(2)(job)
    wait_until(lambda: ranks[2] not in keeper.processes(), "the rank has died")
    with contextlib.suppress(ProcessLookupError):  # the job may have ended
        to_ranks(1)(job)


def to_keeper(job: Job) -> None:
    os.kill(keeper.processes()[job.pids("rank")[0]].parent, signal.SIGKILL)


def to_stopped_ranks(job: Job) -> None:
    to_ranks(0, 1, 2, number=signal.SIGSTOP)(job)
    to_launcher(signal.SIGTERM)(job)


CASES = {
    "HUP": Case(to_launcher(signal.SIGHUP), 130),
    "INT": Case(to_launcher(signal.SIGINT), 130),
    "INT twice": Case(to_launcher(signal.SIGINT, signal.SIGINT), 130),
    "QUIT": Case(to_launcher(signal.SIGQUIT), 130),
    "TERM": Case(to_launcher(signal.SIGTERM), 130),
    "TERM twice": Case(to_launcher(signal.SIGTERM, signal.SIGTERM), 130),
    "TERM, ranks do not heed it": Case(to_launcher(signal.SIGTERM), 130, kind="stubborn"),
    "TERM twice, ranks do not heed it": Case(to_launcher(signal.SIGTERM, signal.SIGTERM), 130, kind="stubborn"),
    "TERM, HUP and INT": Case(to_launcher(signal.SIGTERM, signal.SIGHUP, signal.SIGINT), 130),
    "TERM, ranks are stopped": Case(to_stopped_ranks, 130),
    "KILL": Case(to_launcher(signal.SIGKILL), -signal.SIGKILL),
    "KILL, ranks do not heed TERM": Case(to_launcher(signal.SIGKILL), -signal.SIGKILL, kind="stubborn"),
    "USR1": Case(to_launcher(signal.SIGUSR1), -signal.SIGUSR1),
    "KILL of a rank": Case(to_ranks(1), 137, "rank 1 ended by signal SIGKILL"),
    "KILL of a rank, others do not heed TERM": Case(to_ranks(1), 137, "rank 1 ended by signal SIGKILL", "stubborn"),
    "KILL of two ranks": Case(to_two_ranks, 137, "rank 2 ended by signal SIGKILL"),
    "SEGV of a rank": Case(to_ranks(2, number=signal.SIGSEGV), 139, "rank 2 ended by signal SIGSEGV"),
    "a signal without a name to a rank": Case(to_ranks(2, number=40), 168, "rank 2 ended by signal 40"),
    "KILL of what keeps the ranks": Case(to_keeper, 1, "the process that keeps the ranks ended by signal SIGKILL"),
}


def cases() -> Iterator[Any]:
    for name, case in CASES.items():
        is_slow = case.kind == "stubborn" or case.does is to_stopped_ranks
        yield pytest.param(case, id=name, marks=[pytest.mark.slow] if is_slow else [])


@pytest.mark.parametrize("case", every(2, list(cases())))
def test_nothing_is_left_and_the_first_that_failed_is_named(job: Job, case: Case) -> None:
    launcher = begin(job, KIND=case.kind)
    others = [pid for pid, each in keeper.processes().items() if each.parent in job.pids("rank")]
    assert len(others) == 2 * NUM_RANKS and set(others) < set(job.left())
    case.does(job)
    if case.does is to_keeper:  # without the keeper, processes in other sessions cannot be found
        launcher.wait(TIMEOUT_S)
        ranks = job.pids("rank")
        wait_until(lambda: all(each.session not in ranks for each in keeper.processes().values()), "ranks have ended")
    else:
        nothing_is_left(job)
    assert launcher.returncode == case.status, job.errors()
    assert case.said in job.errors() and job.errors().count("agspeed: ") == bool(case.said)


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0), (0, 2, 1)])
def test_of_ranks_that_die_together_the_first_to_die_is_named(job: Job, order: tuple[int, ...]) -> None:
    """All of them have died before the keeper can check."""
    launcher = begin(job)
    ranks = job.pids("rank")
    parent = keeper.processes()[ranks[0]].parent
    os.kill(parent, signal.SIGSTOP)
    for rank in order:
        os.kill(ranks[rank], signal.SIGKILL)
        wait_until(lambda pid=ranks[rank]: pid not in keeper.processes(), "the rank has died")
    os.kill(parent, signal.SIGCONT)
    assert launcher.wait(TIMEOUT_S) == 137
    assert f"rank {order[0]} ended by signal SIGKILL" in job.errors()


def test_an_exit_status_is_named_though_others_die_of_it(job: Job) -> None:
    """Rank 2 fails; the others notice it and fail, too."""
    text = """
import os, pathlib, sys, time
failed = pathlib.Path(os.environ["FOLDER"], "failed")
if os.environ["RANK"] == "2":
    failed.write_text(str(os.getpid()))
    os._exit(7)
def is_dead():
    try:
        return pathlib.Path("/proc", failed.read_text(), "stat").read_text().split()[2] == "Z"
    except (OSError, ValueError):
        return failed.exists()
while not is_dead():
    time.sleep(0.001)
sys.exit(1)
"""
    launcher = job.start(NUM_RANKS, text, FOLDER=str(job.folder))
    assert launcher.wait(TIMEOUT_S) == 7
    assert "rank 2 ended with status 7" in job.errors()


def test_a_closed_terminal_ends_the_job(job: Job) -> None:
    terminal, its_end = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        os.close(os.open(os.ttyname(its_end), os.O_RDWR))  # the first terminal that a session opens becomes its own

    begin(job, WRITES, stdout=its_end, stderr=its_end, preexec=take_terminal)
    os.close(its_end)
    os.close(terminal)
    nothing_is_left(job)


def test_under_nohup_a_closed_terminal_ends_nothing(job: Job) -> None:
    launcher = begin(job, preexec=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    to_launcher(signal.SIGHUP)(job)
    to_ranks(0, 1, 2, number=signal.SIGHUP)(job)
    time.sleep(0.2)
    assert {launcher.pid, *job.pids("rank")} <= keeper.processes().keys()
    to_launcher(signal.SIGTERM)(job)
    assert launcher.wait(TIMEOUT_S) == 130
    assert job.errors() == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_full_pipe_keeps_no_signal_from_ending_the_job(job: Job, number: int) -> None:
    """The reader of the output reads nothing."""
    begin(job, WRITES, stdout=subprocess.PIPE)
    to_launcher(number)(job)
    nothing_is_left(job)


def test_with_a_full_pipe_a_rank_that_fails_ends_the_job_and_its_output_can_still_be_read(job: Job) -> None:
    launcher = begin(job, WRITES, stdout=subprocess.PIPE)
    assert launcher.stdout is not None
    to_ranks(1)(job)
    wait_until(lambda: job.left() == [launcher.pid], "only the launcher is left")
    assert launcher.stdout.read().startswith(b"[")
    assert launcher.wait(TIMEOUT_S) == 137
    assert "rank 1 ended by signal SIGKILL" in job.errors()


def test_a_reader_that_goes_ends_nothing(job: Job) -> None:
    waits = "while not (folder / 'gone').exists(): time.sleep(0.01)\n"
    launcher = begin(
        job, RANK + waits + "print('x' * 5000); print('y'); (folder / f'done.{rank}').touch()", stdout=subprocess.PIPE
    )
    assert launcher.stdout is not None
    launcher.stdout.close()
    (job.folder / "gone").touch()
    assert launcher.wait(TIMEOUT_S) == 0
    assert len(list(job.folder.glob("done.*"))) == NUM_RANKS and job.errors() == ""


def test_a_job_that_succeeds_waits_for_none_that_its_ranks_have_left(job: Job) -> None:
    launcher = begin(job, RANK + "print('done')")
    assert launcher.wait(TIMEOUT_S) == 0
    assert len(job.left()) == 2 * NUM_RANKS
    assert sorted((job.folder / "out").read_text().splitlines()) == [f"[{rank}]<stdout>:done" for rank in range(3)]


def test_what_a_rank_of_a_failing_job_left_behind_ends_with_the_job(job: Job) -> None:
    launcher = begin(job, RANK + "rank == '0' or time.sleep(600)")
    os.kill(job.pids("rank")[1], signal.SIGKILL)
    assert launcher.wait(TIMEOUT_S) == 137
    assert job.left() == []
