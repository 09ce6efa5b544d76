# SPDX-License-Identifier: Apache-2.0
"""`agspeed cluster up` on four hosts with a real ssh and sshd.

Each host has a virtual environment of its own, at the same path, which finds the torch of this machine. The launcher's
agspeed is in another one, which the hosts do not see.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agspeed import native
from agspeed.version import __version__
from tests.python.support import wheels
from tests.python.support.ssh_hosts import SshHosts, ssh_hosts, unavailable

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
    pytest.mark.timeout(900),
]
_NUM_HOSTS = 4
_TIMEOUT_S = 600
"""Loading torch takes long on a busy machine."""
_SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
_TORCH = importlib.metadata.version("torch")


class Cluster:
    """The hosts, and the environments of each one."""

    def __init__(self, hosts: SshHosts, wheel: Path) -> None:
        self.hosts, self.folder, self.wheel = hosts, hosts.folder, wheel

    def site(self, index: int) -> Path:
        """The folder of a host's packages."""
        return self.folder / f"env.host{index}" / _SITE

    def up(self, *lines: str, options: tuple[str, ...] = ()) -> tuple[int, str]:
        """Returns the status and the output of `agspeed cluster up`."""
        named = self.folder / "hosts.txt"
        named.write_text("".join(f"{line} slots=1\n" for line in lines))
        python = str(self.folder / "launcher" / "bin" / "python")
        words = [str(named), "--remote-python", str(self.folder / "env" / "bin" / "python"), *options]
        return self._run([python, "-m", "agspeed", "cluster", "up", *words])

    def on(self, index: int, script: str) -> str:
        """Returns the output of a shell's script on a host."""
        status, said = self._run(["ssh", f"root@host{index}", script])
        assert status == 0, said
        return said

    def installed(self, index: int) -> list[str]:
        """The packages of a host's own, with the folder of agspeed."""
        return sorted(path.name for path in self.site(index).iterdir() if not path.name.startswith(("torch", "seen.")))

    def clear(self) -> None:
        for index in range(_NUM_HOSTS):
            for path in self.site(index).iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            (self.site(index) / "seen.pth").write_text(sysconfig.get_path("purelib"))
        self.hosts.know_all()

    def _run(self, command: list[str]) -> tuple[int, str]:
        path = self.folder / "said"
        with path.open("wb") as file:
            process = self.hosts.start(command, file, file, PYTHONPATH="", OMP_NUM_THREADS="1")
        status = process.wait(_TIMEOUT_S)
        self.hosts.nothing_is_left()
        print(path.read_text())
        return status, path.read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := unavailable():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("hosts")
    wheel = wheels.of_this_checkout(folder)
    launcher = folder / "launcher"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", launcher], check=True)
    (launcher / _SITE / "seen.pth").write_text(sysconfig.get_path("purelib"))
    for index in range(_NUM_HOSTS):
        shutil.copytree(launcher, folder / f"env.host{index}", symlinks=True)
    (folder / "env").mkdir()
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(launcher / _SITE)
    prepare = f"mount --bind {folder}/env.$(hostname) {folder}/env && mount -t tmpfs tmpfs {launcher}"
    with ssh_hosts(_NUM_HOSTS, folder, prepare) as hosts:
        yield Cluster(hosts, wheel)
        hosts.end_all()


@pytest.fixture
def cluster(whole: Cluster) -> Cluster:
    whole.clear()
    return whole


@pytest.mark.parametrize("num_hosts", [2, pytest.param(_NUM_HOSTS, marks=pytest.mark.thorough)])
def test_hosts_with_torch_come_to_a_step(cluster: Cluster, num_hosts: int) -> None:
    names = [f"root@host{index}" for index in range(num_hosts)]
    status, said = cluster.up(*names)
    assert status == 0, said
    assert f"agspeed {__version__} was installed on {', '.join(names)}.\n" in said
    assert f"one training step on {num_hosts} ranks, with equal weights after it\n" in said
    python = cluster.folder / "env" / "bin" / "python"
    assert said.endswith(
        f"    agspeed run --hostfile {cluster.folder}/hosts.txt --remote-python {python} {python} train.py\n\n"
    )
    assert all("agspeed" in cluster.installed(index) for index in range(num_hosts))


def test_all_reasons_are_named_at_once_and_nothing_is_installed(cluster: Cluster) -> None:
    (cluster.site(1) / "seen.pth").unlink()
    cluster.on(2, f"mount -t tmpfs -o size=1m tmpfs {cluster.folder}/env/{_SITE}")
    other = cluster.site(3) / "torch-1.2.3.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.2.3\n")
    names = ["root@host0", "host1", "host2", "host3", "stranger@host0", "nowhere"]
    try:
        status, said = cluster.up(*names)
    finally:
        cluster.on(2, f"umount {cluster.folder}/env/{_SITE}")
    assert status == 1 and said.endswith("\nNothing was installed.\n"), said
    for sentence in (
        f"! host host1 has no torch in {cluster.folder}/env/bin/python; install it there, or give --install-torch ",
        "! host host2 has 1 MiB free where Python's packages are, and agspeed needs ",
        f"! host host3 has torch 1.2.3, and host root@host0 has {_TORCH}; install one version on all hosts.",
        "! host stranger@host0 cannot be reached: ssh: stranger@host0: Permission denied (publickey); ",
        "! host nowhere cannot be reached: ssh: Could not resolve hostname nowhere: ",
    ):
        assert sentence in said
    assert [cluster.installed(index) for index in range(_NUM_HOSTS)] == [[]] * _NUM_HOSTS


@pytest.mark.thorough
def test_a_host_that_fails_leaves_all_others_as_they_were(cluster: Cluster) -> None:
    earlier = wheels.write(
        cluster.folder, "agspeed", "0.0.1", {"agspeed/version.py": b"__version__ = '0.0.1'\n"}, wheels.TAG
    )
    cluster.on(1, f"{cluster.folder}/env/bin/python -m pip install --no-index {earlier}")
    before = cluster.installed(1)
    (cluster.site(3) / "agspeed").write_text("a file where pip makes a folder")
    status, said = cluster.up("root@host0", "host1", "host2", "host3")
    assert status == 1, said
    assert "! host host3: pip of " in said and "\nNo host has kept a change; " in said, said
    assert [cluster.installed(index) for index in range(_NUM_HOSTS)] == [[], before, [], ["agspeed"]]
    assert (cluster.site(1) / "agspeed" / "version.py").read_text() == "__version__ = '0.0.1'\n"


@pytest.mark.thorough
def test_torch_is_installed_if_the_user_wants_that(cluster: Cluster) -> None:
    """A stand-in for torch's wheel lets the host find the torch of this machine."""
    seen = sysconfig.get_path("purelib")
    without = cluster.folder / "without_torch"
    without.mkdir(exist_ok=True)
    for path in Path(seen).iterdir():
        if not path.name.startswith(("torch", "functorch")) and not (without / path.name).exists():
            (without / path.name).symlink_to(path)
    wheels.write(cluster.folder, "torch", _TORCH.partition("+")[0], {"torch_here.pth": f"{seen}\n".encode()})
    (cluster.site(0) / "seen.pth").write_text(str(without))
    (cluster.folder / "env.host0" / "pip.conf").write_text(
        f"[global]\nno-index = true\nfind-links = {cluster.folder}\n"
    )
    try:
        status, said = cluster.up("root@host0", "host1", options=("--install-torch", _TORCH))
    finally:
        (cluster.folder / "env.host0" / "pip.conf").unlink()
    assert status == 0, said
    assert "one training step on 2 ranks, with equal weights after it\n" in said
    again, said = cluster.up("root@host0", "host1")
    assert again == 0 and f"agspeed {__version__} was there already.\n" in said
