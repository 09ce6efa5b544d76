# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs whose launcher is killed: members go on, and another launcher takes the job over.

`fake_ssh.py` stands for ssh.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agspeed.errors import UserError
from agspeed.launch import arguments
from agspeed.launch.attach import point
from agspeed.launch.attach.report import HostReport
from agspeed.launch.frames import FrameError
from tests.python.launch.jobs import TIMEOUT_S, wait_until
from tests.python.launch.trainings import SLOW_S, Training

QUICK_PAUSES = ("--blacklist-cooldown-range", "0.1", "0.2")


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    found = Training(tmp_path)
    with found.job:
        yield found


def kill_launcher(training: Training) -> None:
    assert training.job.launcher is not None
    training.job.launcher.kill()
    training.job.launcher.wait(TIMEOUT_S)


def parent_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.split("\nPPid:")[1].split()[0])


def make_steps(training: Training, pids: list[int]) -> None:
    before = {pid: training.step(pid) for pid in pids}
    wait_until(lambda: all(training.step(pid) > before[pid] + 5 for pid in pids), "members make steps")


def attached(training: Training, num_ranks: int, *options: str | Path, said: str) -> None:
    """Starts another launcher. It says how it has attached."""
    begin = time.monotonic()
    training.start(num_ranks, "--attach", "a.job", *options, *QUICK_PAUSES)
    training.wait_for_line(f"agspeed: attached to job a.job {said}")
    seconds = time.monotonic() - begin
    print(f"attached after {seconds:.2f} s")
    assert seconds < 30, "5 s, but this machine may have other work"


def begin(training: Training, num_ranks: int, *options: str | Path) -> None:
    training.start(num_ranks, "--job-id", "a.job", *options, *QUICK_PAUSES)


def test_members_go_on_and_one_that_is_lost_later_is_replaced(training: Training) -> None:
    logs = training.job.folder / "logs"
    options = ("--min-np", "1", "-H", "localhost:3", "--output-filename", logs)
    (training.notes / "prints").touch()
    begin(training, 3, *options)
    training.wait_for("localhost", "localhost", "localhost")
    pids = training.pids("localhost")
    wait_until(lambda: b"9\n" in (logs / "rank.0" / "stdout").read_bytes(), "output is in files")
    (training.notes / "prints").unlink()
    kill_launcher(training)
    make_steps(training, pids)
    launcher = training.job.start(3, "pass", "--attach", "a.job", *options)
    assert launcher.wait(SLOW_S) == 2
    assert training.job.errors().startswith("agspeed: job a.job runs another command: ")
    attached(training, 3, *options, said="with 3 ranks\n")
    make_steps(training, pids)
    assert b"9\n" in (logs / "rank.0" / "stdout").read_bytes(), "files are kept"
    assert set(training.pids("localhost")) == set(pids) and "epoch" not in training.job.errors()
    os.kill(pids[0], signal.SIGKILL)
    training.wait_for_line("epoch 3: 3 members train")
    assert ", 3)" in training.job.errors(), "an id is never used again"
    kill_launcher(training)
    attached(training, 3, *options, said="with 3 ranks\n")
    training.wait_for("localhost", "localhost", "localhost")
    assert training.stop() == 0, training.job.errors()
    assert training.ends("localhost").count("done") == 3 and set(pids[1:]) < set(training.pids("localhost"))


def test_on_several_hosts_losses_without_a_launcher_are_reported_and_hosts_can_be_added(training: Training) -> None:
    options = ("--min-np", "1", "--max-np", "4", "-H")
    begin(training, 3, *options, "localhost:1,relay-0:2")
    training.wait_for("localhost", "relay-0", "relay-0")
    (local,), (lost, left) = training.pids("localhost"), training.pids("relay-0")
    kill_launcher(training)
    (training.notes / "prints").touch()
    make_steps(training, [local, lost, left])
    os.kill(lost, signal.SIGKILL)
    wait_until(lambda: training.step(left) > 60, "600,000 bytes are printed, and the member does not wait for a reader")
    attached(training, 3, *options, "localhost:1,relay-0:2,node1:1", said="with 2 ranks; 1 ended meanwhile; ")
    (training.notes / "prints").unlink()
    assert " bytes of their output were dropped\n" in training.job.errors()
    assert "on host relay-0 ended by signal SIGKILL; the others go on" in training.job.errors()
    wait_until(lambda: sorted(training.hosts()) == ["localhost", "node1", "relay-0", "relay-0"], "others", SLOW_S)
    assert local in training.pids("localhost") and left in training.pids("relay-0")
    keys = {path.read_text() for path in (training.notes / "keys").iterdir()}
    assert len(keys) == 1, "all members of the job have its key"
    words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in training.job.left()}
    (relay,) = [pid for pid, each in words.items() if b"fake_ssh" in each and b"\0relay-0\0" in each]
    os.kill(relay, signal.SIGKILL)
    training.wait_for_line("host relay-0 was lost")
    wait_until(lambda: not Path(f"/proc/{left}").exists(), "members behind a lost connection count as lost", SLOW_S)
    assert training.job.launcher is not None
    training.job.launcher.send_signal(signal.SIGTERM)
    assert training.finish() == 130


def test_no_other_launcher_gets_a_job_that_has_one(training: Training) -> None:
    options = ("--min-np", "1", "-H", "localhost:2")
    begin(training, 2, *options)
    training.wait_for("localhost", "localhost")
    first, errors = training.job.launcher, training.job.folder / "err"
    assert first is not None
    errors.rename(training.job.folder / "first")
    wrong = {
        ("--attach", "a.job"): f"job a.job has a launcher already, process {first.pid} on ",
        ("--job-id", "a.job"): "job a.job runs there already; name another --job-id, or, if its launcher was killed,",
        ("--attach", "b.job"): "no processes of job b.job were found on localhost; give the name and the hosts of",
    }
    for words, sentence in wrong.items():
        training.start(2, *words, *options)
        assert training.job.launcher is not None and training.job.launcher.wait(SLOW_S) in (1, 2)
        said = training.job.errors()
        assert said.startswith(f"agspeed: {sentence}") and said.count("\n") == 1, said
    training.job.launcher = first
    make_steps(training, training.pids("localhost"))
    assert training.stop() == 0 and len(training.pids("localhost")) == 2


def test_an_agent_that_does_not_answer_is_no_agent_that_is_not_there(training: Training) -> None:
    options = ("--min-np", "1", "-H", "localhost:1")
    begin(training, 1, *options)
    training.wait_for("localhost")
    (member,) = training.pids("localhost")
    agent = parent_of(parent_of(member))  # the agent's keeper has started the member
    kill_launcher(training)
    os.kill(agent, signal.SIGSTOP)
    try:
        training.start(1, "--attach", "a.job", "--start-timeout", "2", *options)
        assert training.job.launcher is not None and training.job.launcher.wait(SLOW_S) in (1, 2)
    finally:
        os.kill(agent, signal.SIGCONT)
    said = training.job.errors()
    assert "job a.job was not taken over, because no agent of it has answered: host localhost was not ready" in said
    assert "that no process of the job is stopped there" in said
    assert "no processes of job" not in said, said
    attached(training, 1, *options, said="with 1 ranks\n")
    make_steps(training, [member])
    assert training.stop() == 0, training.job.errors()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_does_not_reach_an_agent() -> None:
    with point.listening("a.job", "node0") as listening:
        listening.setblocking(True)
        name = listening.getsockname()
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            found = list(point.connections("a.job", "node0"))
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
                stranger.connect(name)
                stranger.recv(1)
                os._exit(len(found))
        accepted, _ = listening.accept()
        with accepted:
            assert not point.is_of_this_user(accepted)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the other user does not find this one's agents"
        (found,) = point.connections("a.job", "node0")
        found.close()


def test_a_launcher_may_be_lost_before_the_first_epoch(training: Training) -> None:
    training.print_hosts("node0:2")
    found = ("--host-discovery-script", training.script)
    begin(training, 3, *found)
    wait_until(lambda: len(list((training.notes / "keys").glob("*"))) == 2, "two members wait", SLOW_S)
    kill_launcher(training)
    attached(training, 3, *found, said="with 2 ranks\n")
    pids = training.pids("node0")
    training.print_hosts("node0:2", "node1:1")
    training.wait_for("node0", "node0", "node1")
    assert training.pids("node0") == pids
    assert training.stop() == 0, training.job.errors()


@pytest.mark.slow
def test_a_launcher_may_be_lost_while_members_come_and_go(training: Training) -> None:
    training.print_hosts("node0:3")
    found = ("--min-np", "1", "--max-np", "4", "--host-discovery-script", training.script)
    begin(training, 3, *found)
    training.wait_for("node0", "node0", "node0")
    pids = training.pids("node0")
    training.print_hosts("node0:3", "node1:1")
    wait_until(lambda: len(training.pids("node1")) == 1, "a fourth member is about to join", SLOW_S)
    kill_launcher(training)
    attached(training, 3, *found, said="with 4 ranks\n")
    training.wait_for("node0", "node0", "node0", "node1")
    os.kill(pids[0], signal.SIGSTOP)
    kill_launcher(training)
    attached(training, 3, *found, said="with 4 ranks")
    training.wait_for_line("is ended: it has not answered for 4 s; the others go on")
    wait_until(lambda: len(training.pids("node0")) == 4, "another member", SLOW_S)
    wait_until(lambda: sorted(training.hosts()) == ["node0", "node0", "node0", "node1"], "it joins", SLOW_S)
    assert training.stop() == 0, training.job.errors()
    assert training.ends("node0").count("done") == 3


@pytest.mark.parametrize("grace", ["0", "1.5"])
def test_without_another_launcher_all_processes_end(training: Training, grace: str) -> None:
    training.start(3, "--min-np", "1", "-H", "localhost:1,node0:2", "--launcher-grace", grace)
    training.wait_for("localhost", "node0", "node0")
    has_id = "if this launcher is killed, the same command with --attach" in training.job.errors()
    assert has_id == (grace != "0")
    kill_launcher(training)
    killed = time.monotonic()
    training.job.waits_for_nothing_left()
    assert time.monotonic() - killed > float(grace)


WRONG = {
    "--job-id": ["-np", "2", "--job-id", "x", "true"],
    "--attach": ["-np", "2", "--attach", "x", "true"],
    "use one of them": ["-np", "2", "--min-np", "1", "--attach", "x", "--job-id", "x", "true"],
    "write 1 to 64 letters": ["-np", "2", "--min-np", "1", "--job-id", "../x", "true"],
    "--launcher-grace -1.0": ["-np", "2", "--min-np", "1", "--launcher-grace", "-1", "true"],
    "--launcher-grace nan": ["-np", "2", "--min-np", "1", "--launcher-grace", "nan", "true"],
}


@pytest.mark.parametrize(("sentence", "words"), WRONG.items(), ids=WRONG)
def test_wrong_flags_are_named(sentence: str, words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    arguments.add_to(parser)
    with pytest.raises(UserError, match=re.escape(sentence)):
        arguments.request_of(parser.parse_args(words))


REPORT: dict[str, Any] = {
    "progress": [1, 3, True, None],
    "members": [[0, 0, True], [2, 1, False]],
    "gone": [[1, -9]],
    "key": "00",
    "num_dropped": 0,
}


def test_a_report_of_an_agent_is_read() -> None:
    found = HostReport.of(REPORT)
    assert found.living == [(0, 0, True), (2, 1, False)] and found.gone == [(1, -9)] and found.progress.num_known == 3


@pytest.mark.parametrize(
    "change",
    [
        {"progress": None},
        {"progress": [1, 3, True, 0]},
        {"progress": [-1, 3, True, None]},
        {"members": [[3, 0, True]]},
        {"members": [[0, -1, True]]},
        {"members": [0]},
        {"gone": [[1, 256]]},
        {"key": 7},
        {"num_dropped": -1},
    ],
    ids=str,
)
def test_other_reports_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(FrameError):
        HostReport.of(REPORT | change)
