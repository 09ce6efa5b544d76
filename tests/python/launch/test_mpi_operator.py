# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs whose hosts the discover_hosts.sh of an MPIJob's operator prints, in both of its formats.

The scripts are made as the operators' updateDiscoverHostsInConfigMap makes them, and put into place as the kubelet does
it. `fake_ssh.py` and `fake_kubectl.py` stand for the ways into pods.
"""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from agspeed.errors import UserError
from agspeed.launch import agent
from agspeed.launch.hosts import Host, found_by_script
from agspeed.launch.starters import PodExec
from tests.python.launch import fake_kubectl
from tests.python.launch.jobs import wait_until
from tests.python.launch.trainings import SLOW_S, Training

_KUBEXEC = {"OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh"}


def v1(count: int, slots: int = 1) -> str:
    """training-operator: pods with slots. The last line has no end."""
    return "#!/bin/sh" + "".join(f"\necho train-worker-{index}:{slots}" for index in range(count))


def v2beta1(count: int) -> str:
    """mpi-operator: full names of pods without slots."""
    return "#!/bin/sh\n" + "".join(f"echo {full_name(index)}\n" for index in range(count))


def full_name(index: int) -> str:
    return f"train-worker-{index}.train.team-a.svc"


class Mounted:
    """The folder /etc/mpi of a launcher: links to the files of the newest ConfigMap."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "discover_hosts.sh"
        self._num_versions = 0
        folder.mkdir()
        self.script.symlink_to("..data/discover_hosts.sh")

    def update(self, text: str) -> None:
        self._num_versions += 1
        version = self.folder / f"..version-{self._num_versions}"
        version.mkdir()
        (version / "discover_hosts.sh").write_text(text)
        (version / "discover_hosts.sh").chmod(0o555)
        draft = self.folder / "..data_tmp"
        draft.symlink_to(version.name)
        draft.rename(self.folder / "..data")


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    found = Training(tmp_path)
    program = tmp_path / "programs" / "kubectl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {shlex.quote(fake_kubectl.__file__)} "$@"\n')
    program.chmod(0o755)
    with found.job:
        yield found


@pytest.mark.parametrize(
    ("script", "variables", "names"),
    [
        (v1, _KUBEXEC, [f"train-worker-{index}" for index in range(3)]),
        (v2beta1, {}, [full_name(index) for index in range(3)]),
    ],
    ids=["v1", "v2beta1"],
)
def test_a_job_follows_the_replicas_of_an_mpijob(
    script: Callable[[int], str], variables: dict[str, str], names: Sequence[str], training: Training, tmp_path: Path
) -> None:
    mounted = Mounted(tmp_path / "mpi")
    mounted.update(script(2))
    training.job.environment |= variables
    sizes = ["--min-np", "1", "--max-np", "3", "--slots-per-host", "1"]
    training.start(2, "--host-discovery-script", mounted.script, *sizes)
    training.wait_for(*names[:2])
    mounted.update(script(3))
    training.wait_for(*names)
    mounted.update(script(1))
    training.wait_for(names[0])
    wait_until(lambda: [training.ends(name) for name in names[1:]] == [["left"], ["left"]], "two members left", SLOW_S)
    assert training.stop() == 0, training.job.errors()
    assert training.ends(names[0]) == ["done"]


def test_both_formats_give_the_same_hosts() -> None:
    def printed(text: str) -> bytes:
        return b"".join(line.removeprefix("echo ").encode() + b"\n" for line in text.splitlines()[1:])

    first = found_by_script("v1", printed(v1(2, slots=4)), None)
    assert first == (Host("train-worker-0", 4), Host("train-worker-1", 4))
    assert found_by_script("v1", printed(v1(2, slots=4)), 4) == first, "--slots-per-host is for names alone"
    second = found_by_script("v2beta1", printed(v2beta1(2)), 4)
    assert second == (Host(full_name(0), 4), Host(full_name(1), 4))
    with pytest.raises(UserError, match=r"has no slots; .* or give --slots-per-host"):
        found_by_script("v2beta1", printed(v2beta1(2)), None)
    assert found_by_script("v1", printed(v1(0)), None) == found_by_script("v2beta1", printed(v2beta1(0)), 4) == ()


@pytest.mark.parametrize(
    ("pod", "remedy"),
    [
        ("denied-worker-0", "the launcher needs the right to create pods/exec for this pod"),
        ("gone-worker-0", "the pod is gone"),
        ("starting-worker-0", "the pod does not run yet"),
    ],
)
def test_a_pod_that_cannot_be_reached_is_named_with_a_remedy(pod: str, remedy: str, training: Training) -> None:
    training.job.environment |= _KUBEXEC
    training.start(1, "-H", f"{pod}:1", "--min-np", "1")
    assert training.finish() == 1
    assert f"host {pod} cannot be reached: {fake_kubectl.FAILURES[pod]}; {remedy}" in training.job.errors()


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "10.1.2.3"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "SSH_CONNECTION": "10.0.0.7 4000 10.0.0.8 22"}, "10.0.0.8"),
        ({}, ""),
    ],
)
def test_ranks_of_a_fixed_size_meet_at_the_address_of_the_first_pod(
    variables: dict[str, str], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.1.2.3")
    assert agent._description("")["address"] == address


def test_only_the_launcher_of_an_mpijob_v1_execs_into_pods() -> None:
    assert PodExec.of_this_pod({}) is None
    assert PodExec.of_this_pod({"OMPI_MCA_plm_rsh_agent": "ssh"}) is None
    starter = PodExec.of_this_pod(_KUBEXEC)
    assert starter is not None
    command = starter.command(Host("train-worker-0", 1), ["python", "-c", "a b"])
    assert command[1:] == ["exec", "-i", "train-worker-0", "--", "python", "-c", "a b"]
