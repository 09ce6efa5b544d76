# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs whose hosts a script finds, and hosts that fail and come again. `fake_ssh.py` stands for ssh."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agspeed.errors import UserError
from agspeed.launch.discovery import Discovery
from agspeed.launch.hosts import Host
from agspeed.launch.member_host import Pause
from agspeed.launch.output import Output
from agspeed.launch.roster import HostPlan, Roster
from agspeed.launch.starters import Local
from tests.python.launch.jobs import TIMEOUT_S, wait_until
from tests.python.launch.trainings import SLOW_S, Training, script
from tests.python.support.processes import is_alive


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    found = Training(tmp_path)
    with found.job:
        yield found


def test_hosts_that_appear_get_members_and_members_of_hosts_that_vanish_leave(training: Training) -> None:
    training.print_hosts("node0:1", "node1")
    training.start_found(2, "--min-np", "1", "--max-np", "3", "--slots-per-host", "1")
    training.wait_for("node0", "node1")
    training.print_hosts("node0:1", "node2:5", "node1")
    training.wait_for("node0", "node1", "node2")
    training.print_hosts("node1", "node2:2")
    training.wait_for("node1", "node2", "node2")
    assert training.ends("node0") == ["left"]
    assert training.stop() == 0, training.job.errors()
    assert training.ends("node1") + training.ends("node2") == 3 * ["done"]
    assert "host node0 is not in the list any more, so its members leave" in training.job.errors()
    assert "ended" not in training.job.errors(), "leaving is not a failure"


def test_all_hosts_can_be_replaced_by_others(training: Training) -> None:
    training.print_hosts("node0:2")
    training.start_found(2)
    training.wait_for("node0", "node0")
    training.print_hosts("node1:2")
    training.wait_for("node1", "node1")
    assert training.stop() == 0, training.job.errors()
    assert training.ends("node0") == 2 * ["left"] and training.ends("node1") == 2 * ["done"]


def test_an_empty_list_changes_nothing(training: Training) -> None:
    training.print_hosts("node0:1", "node1:1")
    training.start_found(2, "--min-np", "1")
    training.wait_for("node0", "node1")
    training.print_hosts()
    training.wait_for_line("has printed no hosts; run it by hand, and correct it. The hosts stay as they are.")
    assert training.hosts() == ["node0", "node1"]
    assert training.stop() == 0, training.job.errors()


def test_a_host_may_come_back_while_its_members_leave(training: Training) -> None:
    """Its members wait with the state until another one has come, which can be on the same host."""
    training.print_hosts("node0:1")
    training.start_found(1, "--min-np", "1")
    training.wait_for("node0")
    (first,) = training.pids("node0")
    training.print_hosts("unreachable:1")
    training.wait_for_line("host node0 is not in the list any more")
    training.print_hosts("node0:1")
    wait_until(lambda: len(training.pids("node0")) == 2, "a new member", SLOW_S)
    wait_until(lambda: not Path(f"/proc/{first}").exists(), "the first one has left", SLOW_S)
    training.wait_for("node0")
    assert training.stop() == 0, training.job.errors()


def test_fewer_slots_of_a_host_let_its_last_members_leave(training: Training) -> None:
    training.print_hosts("node0:2", "node1:1")
    training.start_found(3, "--min-np", "1")
    training.wait_for("node0", "node0", "node1")
    training.print_hosts("node0:1", "node1:1")
    training.wait_for("node0", "node1")
    assert training.stop() == 0, training.job.errors()
    assert sorted(training.ends("node0")) == ["done", "left"]


def test_a_script_that_fails_later_changes_nothing_and_is_named_once(training: Training) -> None:
    training.print_hosts("node0:1")
    training.start_found(1)
    training.wait_for("node0")
    training.print_hosts("node0:1", "node1;reboot")
    sentence = f"agspeed: --host-discovery-script {training.script}, line 2: 'node1;reboot' is not a host with slots"
    training.wait_for_line(sentence)
    time.sleep(2.5)  # some more runs
    assert training.hosts() == ["node0"]
    training.print_hosts("node0:1", "node1:1")
    training.wait_for_line("host node1 is in the list")
    assert training.stop() == 0
    assert training.job.errors().count(sentence) == 1 and "The hosts stay as they are." in training.job.errors()


def test_a_script_that_fails_first_ends_the_launcher(training: Training) -> None:
    script(training.job.folder, "echo no cluster here >&2; exit 3")
    training.start_found(1)
    assert training.finish() == 1
    sentence = "ended with status 3: 'no cluster here'; run it by hand, and correct it."
    assert training.job.errors() == f"agspeed: --host-discovery-script {training.script} {sentence}\n"


def test_a_found_host_that_cannot_be_reached_is_tried_again_while_others_train(training: Training) -> None:
    training.print_hosts("down:1", "node0:1")
    training.start_found(1, "--max-np", "2", "--blacklist-cooldown-range", "0.1", "0.2")
    training.wait_for("node0")
    training.wait_for_line("The host is tried again in 0.2 s.")
    assert "host down cannot be reached: ssh: connect to host down port 22: No route to host" in training.job.errors()
    assert training.stop() == 0


def test_no_hosts_in_time_end_the_job(training: Training) -> None:
    training.print_hosts()
    training.start_found(1, "--elastic-timeout", "2")
    assert training.finish() == 1
    assert "0 of at least 1 members were ready after 2 s" in training.job.errors()


def test_a_host_that_was_lost_gets_members_again(training: Training) -> None:
    training.start(3, "--min-np", "1", "-H", "localhost:1,relay-0:2", "--blacklist-cooldown-range", "0.1", "1")
    training.wait_for("localhost", "relay-0", "relay-0")
    (connection,) = [pid for pid in training.job.left() if b"fake_ssh" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(connection, signal.SIGKILL)
    training.wait_for_line("host relay-0 was lost")
    wait_until(lambda: len(training.pids("relay-0")) == 4, "other members there", SLOW_S)
    training.wait_for("localhost", "relay-0", "relay-0")
    assert training.stop() == 0, training.job.errors()


@pytest.mark.slow
def test_a_host_whose_member_does_not_answer_stays_unused_for_the_pause(training: Training) -> None:
    training.print_hosts("localhost:1", "node0:2")
    training.start_found(3, "--min-np", "1", "--max-np", "5", "--blacklist-cooldown-range", "600", "600")
    training.wait_for("localhost", "node0", "node0")
    stopped = training.pids("node0")[0]
    os.kill(stopped, signal.SIGSTOP)
    training.print_hosts("localhost:1", "node0:2", "node1:1")
    training.wait_for_line("is ended: it has not answered for 4 s; the others go on")
    wait_until(lambda: not is_alive(stopped), "it has ended", SLOW_S)
    training.wait_for("localhost", "node0", "node1")
    training.print_hosts("localhost:1", "node0:2", "node1:2")
    training.wait_for("localhost", "node0", "node1", "node1")
    assert len(training.pids("node0")) == 2, "no other member has come"
    assert training.stop() == 0, training.job.errors()


def test_the_launcher_ends_a_script_that_still_runs(training: Training) -> None:
    script(training.job.folder, f"cat {training.job.folder}/hosts; touch {training.job.folder}/runs; sleep 600")
    training.print_hosts("node0:1")
    training.start_found(1)
    wait_until((training.job.folder / "runs").exists, "the script runs")
    assert training.job.launcher is not None
    training.job.launcher.terminate()
    assert training.finish() == 130


def found(discovery: Discovery) -> None:
    """Waits for the end of one run."""
    until = time.monotonic() + TIMEOUT_S
    hosts, discovery.complaint = discovery.hosts, ""
    discovery.hosts = None
    while discovery.hosts is None and not discovery.complaint:
        assert time.monotonic() < until
        discovery.note(list(discovery.events()), time.monotonic())
        time.sleep(0.01)
    discovery.hosts = discovery.hosts or hosts


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sleep 600", "has not ended after 0.5 s"),
        ("sleep 600 & exit 0", "has not ended after 0.5 s"),
        ("yes node0:1", "has printed more than 1048576 bytes"),
        ("kill -9 $$", "ended by signal SIGKILL; run it by hand"),
        ("echo node0:1; printf 'node\\377:1\\n'", ", line 2: it has bytes that are no ASCII"),
        ("echo; echo node0", ", line 2: node0 has no slots; print node0:4, for example, or give --slots-per-host."),
        ("echo '$(reboot)'", ", line 1: '$(reboot)' is not a host"),
        ("echo node0:0", ", line 1: node0 has 0 slots"),
        ("echo -- -oProxyCommand=x:1", ", line 1: '-- -oProxyCommand=x:1' is not a host"),
        ("echo node0:1; echo node0:1", ", line 2: node0 is named twice"),
    ],
)
def test_a_bad_run_is_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    discovery = Discovery(script(tmp_path, text), None, longest_run_s=0.5 if "600" in text else TIMEOUT_S)
    found(discovery)
    assert discovery.complaint.startswith(f"--host-discovery-script {tmp_path}/find") and discovery.hosts is None
    assert sentence in discovery.complaint
    discovery.close()


def test_what_cannot_be_executed_is_a_sentence(tmp_path: Path) -> None:
    discovery = Discovery(script(tmp_path, ""), None)
    for mode, text, remedy in (
        (0o644, "#!/bin/sh", "chmod +x"),
        (0o755, "\0", "begin it with a line such as #!/bin/sh"),
    ):
        (tmp_path / "find").write_text(text)
        (tmp_path / "find").chmod(mode)
        discovery._next_run = 0
        found(discovery)
        assert "cannot be started" in discovery.complaint and remedy in discovery.complaint


def test_lines_without_a_number_get_the_slots_per_host(tmp_path: Path) -> None:
    discovery = Discovery(script(tmp_path, "echo '  node0 '; echo; echo me@node1:3"), 2)
    found(discovery)
    assert discovery.hosts == (Host("node0", 2), Host("me@node1", 3)), discovery.complaint
    discovery.close()


class NoProgram(Local):
    def command(self, host: Host, words: Sequence[str]) -> list[str]:
        return ["no-such-program"]


def test_a_connection_that_cannot_be_started_again_is_another_pause(capfd: pytest.CaptureFixture[str]) -> None:
    plan = HostPlan([Host("node0", 1)], None, lambda host: NoProgram(), lambda host: {}, 60.0, (1.0, 60.0))
    with Output(1, None, False) as output:
        roster = Roster(plan, output)
        with pytest.raises(UserError, match="cannot start no-such-program: No such file or directory; install it"):
            roster.note((), 0.0)
        for now in (0.0, 0.5, 1.0):
            roster.note((), now, may_pause=True)
    said = capfd.readouterr().err
    assert [each.is_over for each in roster.hosts] == [True]
    assert said.count("node0: cannot start no-such-program") == 2, said
    assert "It is tried again in 1 s." in said and "It is tried again in 2 s." in said


def test_pauses_double_up_to_the_longest_one_and_always_end() -> None:
    pause = Pause(1.0, 5.0)
    assert [pause.begin(10) for _ in range(50)] == [1.0, 2.0, 4.0, *47 * [5.0]] and pause.until == 15


def test_a_host_that_was_used_for_long_begins_with_a_short_pause_again() -> None:
    pause = Pause(1.0, 5.0)
    assert [pause.begin(now) for now in (0.0, 1.0, 8.0, 17.1)] == [1.0, 2.0, 4.0, 1.0]
