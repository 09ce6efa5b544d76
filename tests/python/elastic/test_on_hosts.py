# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs on four hosts with a real ssh and sshd, which get over faults of hosts, agents, launchers and ranks.

The launcher runs on host0, and reaches all four hosts by ssh.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agspeed import native
from tests.lint import sources
from tests.python.launch.jobs import TIMEOUT_S, wait_until
from tests.python.launch.trainings import MEMBER, script
from tests.python.support.processes import is_alive
from tests.python.support.ssh_hosts import SshHosts, ssh_hosts, unavailable

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
_WAIT_S = 600
"""Loading torch takes long on a busy machine."""
_NUM_HOSTS = 4
_JOB = ("-np", "4", "--min-np", "2", "--blacklist-cooldown-range", "0.5", "1")


@dataclass(frozen=True)
class Member:
    """epochs: rank and size in each epoch so far; step: the newest one; weights: their digest at the end."""

    pid: int
    epochs: list[tuple[int, int]]
    step: int
    weights: str = ""


class Training:
    """A job with one rank on each host. is_real: ranks train by DistributedDataParallel; else they need no torch."""

    def __init__(self, hosts: SshHosts, folder: Path, is_real: bool) -> None:
        self.hosts, self.folder = hosts, folder
        self._is_real = is_real
        self._notes = folder / "members"
        self._notes.mkdir()
        self._numbers = itertools.count()
        self.use(range(_NUM_HOSTS))
        self.start("--job-id", "a.job")

    def use(self, indexes: Collection[int]) -> None:
        """Changes the list of hosts."""
        draft = self.folder / "draft"
        draft.write_text("".join(f"root@host{index}:1\n" for index in indexes))
        draft.rename(self.folder / "hosts")

    def start(self, *options: str) -> None:
        """Starts a launcher."""
        notes = str(self._notes)
        words = (
            ["-m", "benchmarks.elastic.training", notes, "0.02", "elastic"] if self._is_real else [str(MEMBER), notes]
        )
        found = ["--host-discovery-script", str(script(self.folder, f"cat {self.folder}/hosts"))]
        command = [sys.executable, "-m", "agspeed", "run", *_JOB, *found, *options, sys.executable, *words]
        paths = f"{sources.ROOT / 'python'}:{sources.ROOT}"
        self._said = self.folder / f"said{next(self._numbers)}"
        with self._said.open("wb") as file:
            self.launcher = self.hosts.start(command, file, file, PYTHONPATH=paths, OMP_NUM_THREADS="1")

    def said(self) -> str:
        """The launcher's output."""
        return self._said.read_text()

    def living(self) -> list[Member]:
        return [each for each in self._members() if is_alive(each.pid)]

    def group(self) -> dict[int, int]:
        """The processes that train together, by the number of their host; empty while they do not."""
        living = self.living()
        places = sorted(each.epochs[-1] for each in living if each.epochs)
        hosts = {_host_of(each.pid): each.pid for each in living}
        is_whole = places == [(rank, len(living)) for rank in range(len(living))] and len(hosts) == len(living)
        return hosts if is_whole else {}

    def wait_for(self, indexes: Collection[int]) -> dict[int, int]:
        """Waits until one process of each host trains, and all make steps. Returns: the processes, by host."""
        self.wait_until(lambda: self.group().keys() == set(indexes), f"a group on hosts {list(indexes)}")
        self.wait_for_steps()
        return self.group()

    def wait_for_steps(self) -> None:
        before = {each.pid: each.step for each in self.living()}
        self.wait_until(
            lambda: all(each.step > before.get(each.pid, each.step) + 3 for each in self.living()), "all make steps"
        )

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        def is_so_at_last() -> bool:
            assert self.launcher.poll() is None, self.said()
            return is_so()

        wait_until(is_so_at_last, what, _WAIT_S)

    def end(self) -> list[Member]:
        """Lets the training end. Returns: the members that have trained to the end."""
        last = [each.pid for each in self.living()]
        (self._notes / "stop").touch()
        assert self.launcher.wait(_WAIT_S) == 0, self.said()
        self.hosts.nothing_is_left()
        return [each for each in self._members() if each.pid in last]

    def _members(self) -> list[Member]:
        return _real_members(self._notes) if self._is_real else _light_members(self._notes)


def _light_members(notes: Path) -> list[Member]:
    """The members that have begun an epoch, from what `light_member.py` has noted."""
    found = []
    for path in notes.glob("*.*"):
        pid, words = int(path.suffix[1:]), _words(path)
        steps = notes / "steps" / str(pid)
        step = int(steps.read_text() or 0) if steps.exists() else 0
        epochs = [(int(each[2]), int(each[3])) for each in words if each[0] == "epoch"]
        found.append(Member(pid, epochs, step, weights="done" if words and words[-1] == ["done"] else ""))
    return found


def _real_members(notes: Path) -> list[Member]:
    """The same for `benchmarks.elastic.training`."""
    found = []
    for path in notes.iterdir():
        if path.name.isdecimal():
            words = _words(path)
            epochs = [(int(each[2]), int(each[3])) for each in words if each[0] == "epoch" and len(each) == 5]
            steps = [int(each[2]) for each in words if each[0] == "step" and len(each) == 3]
            weights = [each[3] for each in words if each[0] == "end"]
            found.append(Member(int(path.name), epochs, max(steps, default=0), "".join(weights)))
    return found


def _words(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()]


def _host_of(pid: int) -> int:
    """The number of a process's host; -1 if the process has ended."""
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return -1
    return int(dict(each.partition(b"=")[::2] for each in content.split(b"\0"))[b"HOROVOD_HOSTNAME"][4:])


# Each fault returns the processes that are to end by it.


def cut_the_connection_to_a_host(training: Training) -> set[int]:
    (login,) = training.hosts.logins(2)
    os.kill(login, signal.SIGKILL)
    return {training.group()[2]}


def kill_an_agent(training: Training) -> set[int]:
    (agent,) = training.hosts.agents(1)
    struck = training.group()[1]
    os.kill(agent, signal.SIGKILL)
    return {struck}


def kill_the_launcher_and_attach(training: Training) -> set[int]:
    training.launcher.kill()
    training.launcher.wait(TIMEOUT_S)
    before = {each.pid: each.step for each in training.living()}
    wait_until(lambda: all(each.step > before[each.pid] + 3 for each in training.living()), "all go on", _WAIT_S)
    training.start("--attach", "a.job")
    training.wait_until(lambda: "attached to job a.job with 4 ranks\n" in training.said(), "the launcher attaches")
    return set()


def take_a_host_away(training: Training) -> set[int]:
    struck = training.group()[3]
    training.use([0, 1, 2])
    training.wait_for([0, 1, 2])
    training.use(range(_NUM_HOSTS))
    return {struck}


def kill_rank_0(training: Training) -> set[int]:
    (struck,) = [each.pid for each in training.living() if each.epochs[-1][0] == 0]
    os.kill(struck, signal.SIGKILL)
    return {struck}


def stop_a_rank_for_3_s(training: Training) -> set[int]:
    before = {each.pid: each.epochs for each in training.living()}
    stopped = training.group()[2]
    os.kill(stopped, signal.SIGSTOP)
    time.sleep(3)
    os.kill(stopped, signal.SIGCONT)
    training.wait_for_steps()
    assert {each.pid: each.epochs for each in training.living()} == before, "no group was made anew"
    return set()


def cut_a_host_off_the_network(training: Training) -> set[int]:
    struck = training.group()[1]
    with training.hosts.cut(1):
        training.wait_until(
            lambda: all(each.pid == struck or each.epochs[-1][1] == 3 for each in training.living()), "three go on"
        )
    return {struck}


_FAULTS = [
    cut_the_connection_to_a_host,
    kill_an_agent,
    kill_the_launcher_and_attach,
    take_a_host_away,
    kill_rank_0,
    stop_a_rank_for_3_s,
]
_LONGER = [*_FAULTS, cut_a_host_off_the_network, kill_the_launcher_and_attach, kill_rank_0]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    if reason := unavailable():
        pytest.skip(reason)
    with ssh_hosts(_NUM_HOSTS, tmp_path_factory.mktemp("hosts")) as found:
        yield found
        found.end_all()


@pytest.mark.parametrize(
    "is_real",
    [
        False,
        pytest.param(
            True,
            marks=[
                pytest.mark.thorough,
                pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
                pytest.mark.timeout(1800),
            ],
        ),
    ],
    ids=["light", "real"],
)
def test_an_elastic_job_gets_over_faults(hosts: SshHosts, tmp_path: Path, is_real: bool) -> None:
    training = Training(hosts, tmp_path, is_real)
    for fault in _LONGER if is_real else _FAULTS:
        before = set(training.wait_for(range(_NUM_HOSTS)).values())
        print(f"{fault.__name__}, with processes {before}", flush=True)
        struck = fault(training)
        training.wait_until(lambda gone=struck: not any(map(is_alive, gone)), f"{struck} have ended")
        after = set(training.wait_for(range(_NUM_HOSTS)).values())
        assert before & after == before - struck, f"{fault.__name__}: {before} without {struck}, then {after}"
    ended = training.end()
    assert len(ended) == _NUM_HOSTS and all(each.weights for each in ended), training.said()
    assert len({each.weights for each in ended}) == 1, f"weights differ: {ended}"
