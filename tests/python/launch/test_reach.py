# SPDX-License-Identifier: Apache-2.0
"""Interfaces that do not reach the other hosts are left out before the ranks start, and named."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agspeed.launch.frames import FrameError
from agspeed.launch.reach.decision import Failure, decide
from agspeed.launch.reach.interfaces import rails
from agspeed.launch.reach.survey import Survey
from agspeed.netprobe import HostRecord, Rail
from tests.python.launch.jobs import TIMEOUT_S, Job, wait_until
from tests.python.launch.trainings import MEMBER, SLOW_S, Training, script
from tests.python.support.ssh_hosts import SshHosts, ssh_hosts, unavailable

_SILENT = "is silent: packets are dropped"
_PROGRAM = "import os; print(os.environ.get('AGSPEED_SOCKET_IFNAME'))"


def host(number: int, *names: str) -> HostRecord:
    """A host with interfaces whose names end in the number of their network."""
    return HostRecord(f"h{number}", tuple(Rail(name, f"10.0.{name[-1]}.{number}", 24, 1500) for name in names))


def failures(*pairs: tuple[int, int], rail: str = "eth1", both_ways: bool = True) -> list[Failure]:
    ways = [*pairs, *(pair[::-1] for pair in pairs)] if both_ways else pairs
    return [Failure(f"h{a}", rail, f"h{b}", rail, _SILENT) for a, b in ways]


@pytest.mark.parametrize(
    ("num_hosts", "failed", "out"),
    [
        (2, failures((0, 1)), [0, 1]),
        (2, failures((0, 1), both_ways=False), [0, 1]),
        (3, failures((0, 2), (1, 2)), [2]),
        (4, failures((0, 1), (0, 2), (0, 3)), [0]),
        (4, failures((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)), [0, 1, 2, 3]),
        (4, failures((1, 2)), [2]),  # both reach most hosts, and one of them is enough
        (4, [], []),
    ],
)
def test_the_interfaces_at_fault_are_left_out(num_hosts: int, failed: list[Failure], out: list[int]) -> None:
    hosts = [host(number, "eth0", "eth1") for number in range(num_hosts)]
    decision = decide(hosts, failed)
    assert decision.kept == {f"h{number}": ["eth0"] for number in out}
    assert [sentence.split(":")[0] for sentence in decision.sentences] == [
        f"interface eth1 of host h{number} is left out" for number in out
    ]


def test_the_sentence_names_a_host_that_is_not_reached() -> None:
    hosts = [host(number, "eth0", "eth1") for number in range(3)]
    decision = decide(hosts, failures((0, 2), (1, 2)))
    assert decision.sentences == [
        "interface eth1 of host h2 is left out: over it, host h0 is silent: packets are dropped"
    ]
    decision = decide(hosts, failures((0, 2), (1, 2), both_ways=False))
    assert decision.sentences == [
        "interface eth1 of host h2 is left out: from host h0, it is silent: packets are dropped"
    ]


def test_a_host_keeps_its_interfaces_if_none_reaches_the_others() -> None:
    hosts = [host(number, "eth0") for number in range(3)]
    decision = decide(hosts, failures((0, 2), (1, 2), rail="eth0"))
    assert decision.kept == {}
    assert len(decision.sentences) == 1
    assert decision.sentences[0].startswith("no interface of host h2 reaches the other hosts, so its ranks try all")


def test_hosts_with_running_ranks_keep_their_interfaces() -> None:
    hosts = [host(number, "eth0", "eth1") for number in range(3)]
    failed = [Failure("h2", "eth1", "h0", "eth1", _SILENT)]
    assert decide(hosts, failed, fixed=["h0", "h1"]).kept == {"h2": ["eth0"]}
    decision = decide(hosts[:2], [Failure("h1", "eth1", "h0", "eth1", _SILENT)], fixed=["h0"])
    assert decision.kept == {"h1": ["eth0"]}
    assert decision.sentences == [
        "interface eth1 of host h1 is left out: over it, host h0 is silent: packets are dropped"
    ]


def record(number: int) -> dict[str, object]:
    """The report of an agent whose host is a machine of its own."""
    return {"identity": f"machine{number}", "record": host(number, "eth0", "eth1").to_json()}


def test_a_survey_ends_with_the_answers_of_the_hosts_that_join() -> None:
    survey = Survey(["h0", "h1", "h2"], joining=["h2"])
    for number in range(3):
        assert not survey.has_rails and not survey.is_complete
        survey.note_rails(f"h{number}", record(number))
    assert [each["name"] for each in survey.others("h2")] == ["h0", "h1"] and not survey.is_complete
    survey.note_failures("h2", [["eth1", name, "eth1", _SILENT] for name in ("h0", "h1")])
    assert survey.is_complete
    assert survey.decision().kept == {"h2": ["eth0"]}


def test_a_survey_goes_on_without_a_host_that_was_lost() -> None:
    survey = Survey(["h0", "h1", "h2"], joining=["h1", "h2"])
    for number in (0, 2):
        survey.note_rails(f"h{number}", record(number))
    survey.drop("h1")
    assert survey.has_rails and [each["name"] for each in survey.others("h2")] == ["h0"]
    survey.note_failures("h2", [["eth0", "h1", "eth0", _SILENT]])
    assert survey.is_complete and survey.decision().sentences == []


def test_a_survey_names_a_host_that_does_not_answer() -> None:
    survey = Survey(["h0", "h1"], joining=["h1"])
    assert survey.decision().sentences == ["interfaces were not probed: host h0 has not answered in 30 s"]
    for number in range(2):
        survey.note_rails(f"h{number}", record(number))
    assert survey.decision().sentences == ["interfaces were not probed: host h1 has not answered in 30 s"]


@pytest.mark.parametrize("rails_value", [None, 3, {}, {"identity": 1, "record": {}}, {"identity": "a", "record": []}])
@pytest.mark.parametrize("failed_value", [None, 3, [3], [["a"]], [[1, "b", "c", "d"]]])
def test_other_answers_than_an_agents_are_refused(rails_value: object, failed_value: object) -> None:
    survey = Survey(["b"])
    with pytest.raises(FrameError):
        survey.note_rails("b", rails_value)
    with pytest.raises(FrameError):
        survey.note_failures("b", failed_value)


def test_a_setting_that_chooses_interfaces_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert rails() == ()


def test_hosts_that_share_a_machine_are_not_probed(tmp_path: Path) -> None:
    with Job(tmp_path) as job:
        assert job.start(2, _PROGRAM, "-H", "localhost:1,node0:1").wait(TIMEOUT_S) == 0, job.errors()
        job.waits_for_nothing_left()
        assert job.errors() == ""
        assert (tmp_path / "out").read_text().count("None") == 2


def test_hosts_of_an_elastic_job_that_share_a_machine_are_not_probed(tmp_path: Path) -> None:
    training = Training(tmp_path)
    with training.job:
        training.print_hosts("localhost:1", "node0:1")
        training.start_found(2, "--max-np", "3")
        training.wait_for("localhost", "node0")
        training.print_hosts("localhost:1", "node0:1", "node1:1")
        training.wait_for("localhost", "node0", "node1")
        assert training.stop() == 0, training.job.errors()
        assert "interface" not in training.job.errors()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    if reason := unavailable():
        pytest.skip(reason)
    with ssh_hosts(3, tmp_path_factory.mktemp("hosts"), rails=2) as found:
        yield found
        found.end_all()


def run(hosts: SshHosts, folder: Path, *options: str) -> tuple[list[str], Sequence[str]]:
    """Runs a job of one rank per host. Returns: the interfaces that are named to ranks, and the launcher's lines."""
    command = [sys.executable, "-m", "agspeed", "run", "-H", "root@host0:1,host1:1,host2:1", *options]
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        launcher = hosts.start([*command, sys.executable, "-c", _PROGRAM], out, err)
        try:
            status = launcher.wait(SLOW_S)
        except subprocess.TimeoutExpired:
            launcher.kill()
            raise
    hosts.nothing_is_left()
    errors = (folder / "err").read_text()
    assert status == 0, errors
    lines = sorted((folder / "out").read_text().splitlines())
    return [line.partition(":")[2] for line in lines], errors.splitlines()


@pytest.mark.cluster
@pytest.mark.slow
def test_a_job_leaves_out_an_interface_that_is_cut_off(hosts: SshHosts, tmp_path: Path) -> None:
    first, second = hosts.bed.hosts[2].rails
    assert run(hosts, tmp_path) == (["None", "None", "None"], [])
    second.drop("in")
    try:
        chosen, lines = run(hosts, tmp_path)
        named, _ = run(hosts, tmp_path, "--network-interfaces", second.name)
    finally:
        second.heal()
    assert chosen == ["None", "None", f"={first.name}"]
    (line,) = lines
    assert line.startswith(f"agspeed: interface {second.name} of host host2 is left out: "), line
    assert named == [second.name] * 3, "a choice of the user's stays"


def choices(notes: Path) -> dict[str, str]:
    """The interfaces that are named to members of an elastic job, by host."""
    found = {}
    for path in notes.glob("host*.*"):
        with contextlib.suppress(OSError):  # it has ended
            variables = Path(f"/proc/{path.suffix[1:]}/environ").read_bytes().split(b"\0")
            named = dict(each.partition(b"=")[::2] for each in variables)
            found[path.stem] = named.get(b"AGSPEED_SOCKET_IFNAME", b"").decode()
    return found


@pytest.mark.slow
def test_a_host_that_joins_an_elastic_job_leaves_out_an_interface_that_is_cut_off(
    hosts: SshHosts, tmp_path: Path
) -> None:
    first, second = hosts.bed.hosts[2].rails
    notes, listed = tmp_path / "members", tmp_path / "hosts"
    notes.mkdir()
    listed.write_text("root@host0:1\nroot@host1:1\n")
    found = ["--host-discovery-script", str(script(tmp_path, f"cat {listed}"))]
    command = [sys.executable, "-m", "agspeed", "run", "-np", "2", "--max-np", "3", *found]
    second.drop("in")
    try:
        with (tmp_path / "err").open("wb") as err:
            launcher = hosts.start([*command, sys.executable, str(MEMBER), str(notes)], err, err)
        wait_until(lambda: choices(notes) == {"host0": "", "host1": ""}, "two hosts train", SLOW_S)
        listed.write_text("root@host0:1\nroot@host1:1\nroot@host2:1\n")
        all_choices = {"host0": "", "host1": "", "host2": f"={first.name}"}
        wait_until(lambda: choices(notes) == all_choices, f"host2 trains: {(tmp_path / 'err').read_text()}", SLOW_S)
    finally:
        second.heal()
        (notes / "stop").touch()
    assert launcher.wait(SLOW_S) == 0, (tmp_path / "err").read_text()
    hosts.nothing_is_left()
    lines = [line for line in (tmp_path / "err").read_text().splitlines() if "interface" in line]
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"agspeed: interface {second.name} of host root@host2 is left out: over it, host "), (
        lines
    )
