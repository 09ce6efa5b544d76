# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs of real processes: some are killed, stopped, told to leave or replaced, and the others go on."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from agspeed import native
from tests.lint import sources
from tests.python.launch.jobs import Job, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]
_PROGRAM = Path(__file__).with_name("training.py")
_TIMEOUT_S = 240
"""Loading torch takes long on a busy machine."""


class Epoch(NamedTuple):
    rank: int
    size: int
    step: int


class Training:
    """An elastic job that runs training.py."""

    def __init__(self, folder: Path) -> None:
        self.job = Job(folder)
        self.job.environment["PYTHONPATH"] += f":{sources.ROOT}"
        self.notes = folder / "members"
        self.notes.mkdir()

    def start(self, size: int, *options: str, num_steps: int = 80, kind: str = "plain") -> None:
        command = [sys.executable, str(_PROGRAM), str(num_steps), str(self.notes), kind, str(size)]
        self.job.start(size, "", *options, command=command)

    def epochs(self, pid: int) -> list[Epoch]:
        return [Epoch(*map(int, words[1:])) for words in self._words(pid) if words[0] == "epoch"]

    def wait_for_epoch(self, size: int, number: int = 1) -> list[int]:
        """Waits until all members have begun `number` epochs, the last of them of this size. Returns: pids by rank."""

        def found() -> dict[int, int]:
            last = {pid: self.epochs(pid) for pid in self.pids()}
            return {each[-1].rank: pid for pid, each in last.items() if len(each) >= number and each[-1].size == size}

        def is_there() -> bool:
            assert self.job.launcher is not None and self.job.launcher.poll() is None, self.job.errors()
            return len(found()) == size

        wait_until(is_there, f"epoch {number} of {size} members", _TIMEOUT_S)
        return [found()[rank] for rank in range(size)]

    def pids(self) -> list[int]:
        return [int(path.name) for path in self.notes.iterdir() if path.name.isdecimal()]

    def finish(self) -> int:
        assert self.job.launcher is not None
        status = self.job.launcher.wait(_TIMEOUT_S)
        self.job.waits_for_nothing_left()
        return status

    def results(self) -> dict[int, list[str]]:
        """Step, weights and rate at the end, by the pid of each member that has finished."""
        return {pid: words[1:] for pid in self.pids() for words in self._words(pid) if words[0] == "done"}

    def statuses(self, pid: int) -> list[tuple[str, str]]:
        """State and plan, whenever they have changed."""
        return [(words[1], words[2]) for words in self._words(pid) if words[0] == "status"]

    def _words(self, pid: int) -> list[list[str]]:
        return [line.split() for line in (self.notes / str(pid)).read_text().splitlines()]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    found = Training(tmp_path)
    with found.job:
        yield found


def assert_all_have_the_same(training: Training, num_members: int) -> None:
    results = training.results()
    assert len(results) == num_members, training.job.errors()
    assert len({tuple(each[:2]) for each in results.values()}) == 1, results


@pytest.mark.parametrize(
    ("rank", "kind"),
    [(0, "optimized"), *(pytest.param(rank, "plain", marks=pytest.mark.thorough) for rank in range(3))],
)
def test_the_others_go_on_when_a_member_is_killed(training: Training, rank: int, kind: str) -> None:
    # The pause keeps another member from taking the place.
    training.start(3, "--min-np", "2", "--blacklist-cooldown-range", "600", "600", kind=kind)
    members = training.wait_for_epoch(3)
    os.kill(members.pop(rank), signal.SIGKILL)
    assert training.finish() == 0, training.job.errors()
    assert_all_have_the_same(training, 2)
    assert set(training.results()) == set(members), "no process was started again"
    for number, pid in enumerate(members):
        assert [each[:2] for each in training.epochs(pid)[1:]] == [(number, 2)]
    assert f"member {rank} on host localhost ended by signal SIGKILL; the others go on" in training.job.errors()
    assert {each[2] for each in training.results().values()} == {"0.666667"}, "on_change got both sizes"
    assert "is not a setting" not in training.job.errors()
    assert re.search(r"\nagspeed: 80 steps in 2 epochs; .*; changes took [\d.]+ s\n", training.job.errors())


def test_a_member_takes_the_place_of_a_killed_one(training: Training) -> None:
    training.start(3, "--min-np", "2", kind="until joined")
    first = training.wait_for_epoch(3)
    os.kill(first[0], signal.SIGKILL)
    assert training.finish() == 0, training.job.errors()
    assert_all_have_the_same(training, 3)
    assert [[each.size for each in training.epochs(pid)] for pid in first[1:]] == [[3, 2, 3], [3, 2, 3]]
    assert [training.epochs(pid)[-1].rank for pid in first[1:]] == [0, 1], "survivors come first"
    (newcomer,) = training.results().keys() - set(first)
    (epoch,) = training.epochs(newcomer)
    assert epoch.rank == 2 and epoch.step > 0, "it has taken the state over"


@pytest.mark.thorough
def test_another_launcher_goes_on_after_the_first_and_a_member_were_killed(training: Training) -> None:
    training.start(3, "--min-np", "2", "--job-id", "a.job", kind="until joined", num_steps=200)
    first = training.wait_for_epoch(3)
    assert training.job.launcher is not None
    training.job.launcher.kill()
    training.job.launcher.wait()
    os.kill(first[0], signal.SIGKILL)
    training.start(3, "--min-np", "2", "--attach", "a.job", kind="until joined", num_steps=200)
    assert training.finish() == 0, training.job.errors()
    errors = training.job.errors()
    assert "agspeed: attached to job a.job with 2 ranks; 1 ended meanwhile\n" in errors
    assert "member 0 on host localhost ended by signal SIGKILL; the others go on" in errors
    assert re.search(r"\nagspeed: \d+ steps in \d epochs; ", errors)
    assert_all_have_the_same(training, 3)
    assert set(first[1:]) < training.results().keys(), "no process was started again"
    assert all(training.epochs(pid)[0].size == 3 for pid in first[1:])


@pytest.mark.parametrize(
    ("rank", "kind", "when"),
    [
        (0, "tuned", "while ranks tune"),
        pytest.param(1, "tuned", "while ranks tune", marks=pytest.mark.thorough),
        pytest.param(1, "tuned", "after the decision", marks=pytest.mark.thorough),
        (0, "followed", "after the decision"),
    ],
)
def test_all_members_follow_one_decision(training: Training, rank: int, kind: str, when: str) -> None:
    """A member that joins replays what the others have decided. If they had not decided, all tune anew."""
    training.start(3, "--min-np", "2", kind=kind)
    first = training.wait_for_epoch(3)
    if when == "after the decision":
        wait_until(
            lambda: all(training.statuses(pid) and training.statuses(pid)[-1][0] != "tuning" for pid in first),
            when,
            _TIMEOUT_S,
        )
    os.kill(first[rank], signal.SIGKILL)
    wait_until(lambda: len(training.pids()) == 4, "a new member", _TIMEOUT_S)
    members = [pid for pid in training.pids() if pid != first[rank]]
    wait_until(
        lambda: all([each.size for each in training.epochs(pid)[-1:]] == [3] for pid in members),
        "epoch of 3",
        _TIMEOUT_S,
    )
    (training.notes / "may end").touch()
    assert training.finish() == 0, training.job.errors()
    assert_all_have_the_same(training, 3)
    last = {training.statuses(pid)[-1] for pid in members}
    assert last == {("tuned", "aot")} or (kind == "tuned" and last == {("eager", "eager")}), last
    assert "restore and optimize it" not in training.job.errors()
    if when == "after the decision":
        for pid in set(first) - {first[rank]}:
            states = [state for state, _ in training.statuses(pid)]
            decided = next(number for number, state in enumerate(states) if state != "tuning")
            assert "tuning" not in states[decided:], f"process {pid} keeps what was decided: {states}"


def test_sigterm_lets_a_member_finish_its_step_and_leave(training: Training) -> None:
    training.start(3, "--min-np", "1")
    members = training.wait_for_epoch(3)
    os.kill(members[1], signal.SIGTERM)
    assert training.finish() == 0, training.job.errors()
    assert "ended" not in training.job.errors(), "leaving is not a failure"
    assert "80 steps in 2 epochs; " in training.job.errors()
    assert_all_have_the_same(training, 2)
    assert members[1] not in training.results()


@pytest.mark.thorough
def test_a_stopped_member_is_given_up_and_ended(training: Training) -> None:
    training.start(3, "--min-np", "1")
    members = training.wait_for_epoch(3)
    os.kill(members[2], signal.SIGSTOP)
    assert training.finish() == 0, training.job.errors()
    assert "member 2 on host localhost is ended: it has not answered for 4 s" in training.job.errors()
    assert_all_have_the_same(training, 2)


@pytest.mark.thorough
def test_a_member_stopped_for_a_moment_stays(training: Training) -> None:
    training.start(2, "--min-np", "1")
    members = training.wait_for_epoch(2)
    os.kill(members[1], signal.SIGSTOP)
    wait_until(lambda: "has not answered" in training.job.errors(), "the peer notices", _TIMEOUT_S)
    os.kill(members[1], signal.SIGCONT)
    assert training.finish() == 0, training.job.errors()
    assert [len(training.epochs(pid)) for pid in members] == [1, 1]
    assert_all_have_the_same(training, 2)


@pytest.mark.thorough
def test_a_mistake_in_the_script_ends_one_member_after_another(training: Training) -> None:
    training.start(2, "--min-np", "1", kind="raises")
    first = training.wait_for_epoch(2)
    assert training.finish() == 0, training.job.errors()
    assert "ValueError: a mistake in the script" in training.job.errors()
    assert set(training.results()) == {first[0]}


def test_a_step_that_a_part_of_the_members_has_made_gives_no_other_weights(training: Training) -> None:
    training.start(2, "--min-np", "2", kind="torn")
    assert training.finish() == 0, training.job.errors()
    assert_all_have_the_same(training, 2)
    assert [len(training.epochs(pid)) for pid in training.pids()] == [2, 2]


def test_an_error_that_comes_in_each_epoch_reaches_the_user(training: Training) -> None:
    training.start(2, "--min-np", "2", kind="fails")
    assert training.finish() == 1
    assert "DistBackendError: this fails in each epoch" in training.job.errors()


def test_a_member_that_fails_before_training_begins_ends_the_job(training: Training) -> None:
    training.job.start(2, "import sys; sys.exit('no data')", "--min-np", "1")
    assert training.finish() == 1
    errors = training.job.errors()
    assert "ended with status 1, so the job was ended; its last lines:" in errors and "no data" in errors


@pytest.mark.thorough
def test_sigterm_to_the_launcher_ends_all_members(training: Training) -> None:
    training.start(2, "--min-np", "1", num_steps=10_000)
    training.wait_for_epoch(2)
    assert training.job.launcher is not None
    training.job.launcher.terminate()
    assert training.finish() == 130
    assert not training.results()


@pytest.mark.thorough
def test_the_loss_of_a_host_leaves_the_members_of_the_others(training: Training) -> None:
    training.start(3, "--min-np", "2", "-H", "localhost:2,relay-0:1", num_steps=150)
    members = training.wait_for_epoch(3)
    (connection,) = [pid for pid in training.job.left() if b"fake_ssh" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(connection, signal.SIGKILL)
    assert training.finish() == 0, training.job.errors()
    assert "host relay-0 was lost" in training.job.errors()
    assert set(training.results()) == set(members[:2])
    assert_all_have_the_same(training, 2)


def test_a_script_that_is_not_elastic_runs_to_its_end(training: Training) -> None:
    training.job.start(2, "print('hello')", "--min-np", "1")
    assert training.finish() == 0
    assert sorted((training.job.folder / "out").read_text().splitlines()) == ["[0]<stdout>:hello", "[1]<stdout>:hello"]


def test_an_elastic_script_runs_in_one_process_without_a_launcher(tmp_path: Path) -> None:
    from torch import nn

    from agspeed import elastic

    model = nn.Linear(2, 2)

    @elastic.run
    def train(state: elastic.State, last: int) -> int:
        while state.num_steps < last:
            state.advance()
        return state.num_steps

    assert train(elastic.State(model=model), 5) == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-np", "2", "--min-np", "3"], "--min-np 3, -np 2, --max-np 2"),
        (["-np", "2", "--max-np", "1"], "--min-np 2, -np 2, --max-np 1"),
        (["-np", "2", "--min-np", "0"], "--min-np 0"),
        (["-np", "2", "--min-np", "1", "--elastic-timeout", "0"], "--elastic-timeout 0"),
        (["-np", "2", "--min-np", "1", "--reset-limit", "-1"], "--reset-limit -1"),
        (["-np", "3", "--min-np", "1", "-H", "localhost:2"], "Requested more processes (3)"),
    ],
    ids=str,
)
def test_limits_that_cannot_hold_are_refused(training: Training, options: list[str], words: str) -> None:
    training.job.start(None, "", *options)
    assert training.finish() == 2
    assert words in training.job.errors()
