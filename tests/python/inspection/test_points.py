# SPDX-License-Identifier: Apache-2.0
"""Inspection points that answer, and processes of this user that pose as points."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from agspeed.cli.main import main
from agspeed.inspection import points, processes
from tests.python.inspection.fake_points import document, group, operation, point, sends

_NOBODY = 65534


def _ask(name: str, timeout_s: float = 2.0) -> points.Answer:
    [answer] = points.ask([name], lambda found: found.user == os.geteuid(), timeout_s)
    return answer


def test_an_answer_says_what_the_rank_waits_for() -> None:
    said = document(groups=[group(operations=[operation(1)])], stack=["train.py:12 in step"])
    with point(sends(said)) as name:
        assert name in points.find()
        answer = _ask(name)
    assert (answer.point.process, answer.point.rank, answer.problem) == (os.getpid(), 0, "")
    assert answer.rank is not None
    [found] = answer.rank.groups[0].operations
    assert (found.sequence, found.awaited, found.num_moved, found.num_bytes) == (7, (1,), 16, 32)
    assert answer.rank.stack == ("train.py:12 in step",)


def test_a_long_answer_comes_in_packets() -> None:
    said = document(groups=[group(ranks=list(range(50_000)))])
    with point(sends(said)) as name:
        answer = _ask(name, 30)
    assert answer.rank is not None and len(answer.rank.groups[0].ranks) == 50_000


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "closed the connection without an answer"),
        (b"GET / HTTP/1.1\r\n\r\n", "cannot be read"),
        (b"[" * 1000, "nested more than"),
        (b"\xff\xfe", "cannot be read"),
        ({"kind": "agspeed.inspection", "version": 2}, "no document of this version"),
        ({"kind": "agspeed.inspection", "version": 1}, "not complete"),
        (document(rank=1), "about rank 1 of another job"),
        (document(job="ffffffff"), "about rank 0 of another job"),
        (document(state="asleep"), "its state is 'asleep'"),
        (document(rank=5), "not a number from 0 to 1"),
        (document(groups=[group(operations=[operation(1, seconds=-1)])]), "not a positive number"),
        (document(groups=[group(operations=[operation(1, seconds=10**400)])]), "is not a number that JSON can hold"),
        (document(groups=[group(operations=[operation(1, bytes=True)])]), "not a number from 0"),
        (document(stack=["x" * 5000]), "is not text"),
        (document(peers=[{"rank": 1}]), "not complete: 'silent_s'"),
    ],
)
def test_an_answer_that_no_rank_gives_is_a_problem_of_that_process(content: Any, problem: str) -> None:
    with point(sends(content)) as name:
        answer = _ask(name)
    assert answer.rank is None
    assert problem in answer.problem


def test_an_endless_answer_is_cut_off() -> None:
    def answer(connection: socket.socket) -> None:
        while True:
            connection.send(b" " * 32768)

    with point(answer) as name:
        assert "sent more than 4 MiB" in _ask(name, 60).problem


def test_silent_processes_together_cost_one_deadline() -> None:
    with (
        point(lambda connection: time.sleep(1.5), rank=0) as silent,
        point(lambda connection: time.sleep(1.5), rank=1) as other,
        point(sends(document(job="", rank=2, world_size=3)), job="", rank=2, size=3) as third,
    ):
        answers = points.ask([silent, other, third], lambda found: True, 0.5)
    problems = {answer.point.rank: answer.problem for answer in answers}
    assert problems == {0: "did not answer within 0.5 s", 1: "did not answer within 0.5 s", 2: ""}


def test_a_process_that_has_ended_gives_no_answer() -> None:
    """A process that was forked from it keeps the socket open."""
    script = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.bind('\\0agspeed-inspect-0a1b2c3d-0-2-' + '5' * 16)\n"
        "s.listen()\n"
        "if os.fork() == 0:\n"
        "    print('open', flush=True)\n"
        "    sys.stdin.read()\n"
        "os._exit(0)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        process.wait()
        name = "@agspeed-inspect-0a1b2c3d-0-2-" + "5" * 16
        assert name in points.find()
        assert points.ask([name], lambda found: True) == []


def test_a_name_that_is_gone_gives_no_answer() -> None:
    assert points.ask(["@agspeed-inspect-0a1b2c3d-0-2-" + "6" * 16], lambda found: True) == []


def test_names_of_other_programs_are_not_asked() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(f"\0agspeed-inspect-{os.getpid()}")
        other.listen()
        assert not any(str(os.getpid()) in name for name in points.find())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_the_socket_of_another_user_is_not_believed() -> None:
    script = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.bind('\\0agspeed-inspect-0a1b2c3d-0-2-' + '7' * 16)\n"
        "s.listen()\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        ["/usr/bin/python3", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=_NOBODY, cwd="/"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        name = "@agspeed-inspect-0a1b2c3d-0-2-" + "7" * 16
        assert name in points.find()
        assert points.ask([name], lambda found: found.user == os.geteuid()) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["99999999"], "there is no process 99999999 on this host"),
        (["0"], "there is no process 0 on this host"),
        (["-5"], "there is no process -5 on this host"),
        (["one"], "invalid int value"),
        (["--job=none"], "this host has no such job"),
    ],
)
def test_wrong_words_are_refused_with_a_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with point(sends(document(job="11111111")), job="11111111"):
        assert main(["comm", "inspect", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err


def test_a_process_without_agspeed_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            with point(sends(document())):
                assert main(["comm", "inspect", str(process.pid)]) == 2
        finally:
            process.kill()
    assert f"process {process.pid} has no process group of agspeed" in capsys.readouterr().err


def test_secrets_of_a_command_line_are_not_shown() -> None:
    words = [sys.executable, "-c", "import time; time.sleep(600)", "--token", "abc123secret", "--lr=0.1"]
    with subprocess.Popen(words) as process:
        try:
            end = time.monotonic() + 60
            while not (found := processes.look_at(process.pid)) or not found.command:  # it is starting its program
                assert time.monotonic() < end
        finally:
            process.kill()
    assert found is not None and found.command.endswith("--token *** --lr=0.1")


def test_a_launcher_shows_the_job_of_its_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    with point(sends(document(job="22222222")), job="22222222"):
        assert main(["comm", "inspect", str(os.getppid())]) == 0
    assert "Job 22222222: 1 of 2 ranks are on this host." in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_another_user_learns_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: _NOBODY)
    with point(sends(document(job="33333333")), job="33333333"):
        assert main(["comm", "inspect", str(os.getpid())]) == 2
        assert "belongs to user root: only that user and root can look into it" in capsys.readouterr().err
        assert main(["comm", "inspect", "--job=33333333"]) == 2
        assert "this host has no such job" in capsys.readouterr().err
