# SPDX-License-Identifier: Apache-2.0
"""Installation of a wheel on several hosts by agents: on all of them, or on none. Hosts are virtual environments."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from agspeed.errors import UserError
from agspeed.launch.hosts import Host
from agspeed.launch.install import carried_code, installed_wheel
from agspeed.launch.install.installation import Package, Result, install
from agspeed.launch.starters import Ssh
from tests.python.support import wheels

pytestmark = pytest.mark.slow
_SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
_NAMES = ("a", "b")
_TIMEOUT_S = 300


@dataclass(frozen=True)
class Environments(Ssh):
    """Runs programs with the Python of the host's environment."""

    folder: Path = Path()
    silence_s: float | None = None

    def command(self, host: Host, words: Sequence[str]) -> list[str]:
        return [str(self.folder / host.name / "bin" / "python"), *words[1:]]

    def site(self, name: str) -> Path:
        return self.folder / name / _SITE

    def install(self, wheel: Path) -> Result:
        package = Package(wheel.name, wheel.read_bytes(), {})
        return install([Host(name, 1) for name in _NAMES], self, package, _TIMEOUT_S)

    def version(self, name: str) -> str | None:
        """The version that is installed, as its file and pip's list say it."""
        found = [path.name for path in self.site(name).glob("agspeed-*.dist-info")]
        if not found and not (self.site(name) / "agspeed").is_dir():
            return None
        version = (self.site(name) / "agspeed" / "version.py").read_text()
        assert found == [f"agspeed-{version}.dist-info"]
        return version


@pytest.fixture
def environments(tmp_path: Path) -> Environments:
    first, seen = tmp_path / _NAMES[0], tmp_path / "seen"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", first], check=True)
    (first / _SITE / "seen.pth").write_text(str(seen))
    seen.mkdir()
    (seen / "pip").symlink_to(Path(sysconfig.get_path("purelib"), "pip"))
    for name in _NAMES[1:]:
        shutil.copytree(first, tmp_path / name, symlinks=True)
    return Environments(folder=tmp_path)


def _wheel(folder: Path, version: str, *, needs: Sequence[str] = ()) -> Path:
    return wheels.write(folder, "agspeed", version, {"agspeed/version.py": version.encode()}, needs=needs)


def test_a_wheel_replaces_an_earlier_one_and_is_not_installed_twice(environments: Environments) -> None:
    for version, changed in (("0.0.1", ["a", "b"]), ("0.0.2", ["a", "b"]), ("0.0.2", [])):
        result = environments.install(_wheel(environments.folder, version))
        assert (result.problems, result.changed) == ([], changed)
        assert [environments.version(name) for name in _NAMES] == [version, version]


def test_no_host_keeps_a_change_if_one_fails(environments: Environments) -> None:
    assert environments.install(_wheel(environments.folder, "0.0.1")).problems == []
    shutil.rmtree(environments.site("b") / "agspeed-0.0.1.dist-info")
    shutil.rmtree(environments.site("b") / "agspeed")
    (environments.site("b") / "agspeed").write_text("a file where pip makes a folder")
    result = environments.install(_wheel(environments.folder, "0.0.2"))
    (problem,) = result.problems
    assert problem.startswith("host b: pip of ") and "cannot install agspeed-0.0.2-py3-none-any.whl: " in problem
    assert result.changed == []
    assert environments.version("a") == "0.0.1"
    assert sorted(path.name for path in environments.site("b").iterdir()) == ["agspeed", "seen.pth"]


def test_nothing_is_begun_if_a_host_cannot_install(environments: Environments) -> None:
    wheel = _wheel(environments.folder, "0.0.1", needs=["a-package-that-does-not-exist==1.0"])
    for name in _NAMES:
        (environments.folder / name / "pip.conf").write_text("[global]\nno-index = true\n")
    result = environments.install(wheel)
    assert [sentence.split(":")[0] for sentence in result.problems] == ["host a", "host b"]
    assert all("let the host reach a package index" in sentence for sentence in result.problems)
    assert [environments.version(name) for name in _NAMES] == [None, None]


def test_an_installed_agspeed_becomes_a_wheel_again(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path, "0.0.1")
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    (found,) = importlib.metadata.distributions(name="agspeed", path=[str(tmp_path / "site")])
    name, content = installed_wheel.packed(found)
    again = tmp_path / "again"
    again.mkdir()
    (again / name).write_bytes(content)
    shutil.unpack_archive(again / name, again / "site", "zip")
    assert name == wheel.name
    lines = [
        installed_wheel.lines_of((folder / "site/agspeed-0.0.1.dist-info/RECORD").read_text())
        for folder in (tmp_path, again)
    ]
    assert lines[0] == lines[1] and len(lines[0]) == 3
    (tmp_path / "site/agspeed/version.py").unlink()
    with pytest.raises(UserError, match=r"is not complete: agspeed/version\.py"):
        installed_wheel.packed(found)


def test_an_interpreter_that_is_too_old_names_its_version() -> None:
    text = carried_code.words(b"")[1].replace("(3, 11) <=", "(4, 0) <=")
    done = subprocess.run([sys.executable, "-c", text, "0"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("agspeed needs Python 3.11 to 3.13, and ")
