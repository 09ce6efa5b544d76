# SPDX-License-Identifier: Apache-2.0
"""The image of `agspeed cluster render container`, built by podman, and its programs, run by buildah.

No registry of images takes part. mmdebstrap makes the Debian that the recipe begins with, from the mirror of this
machine. pip takes all wheels from `dist/`, where torch is an empty package. So the image cannot train.

Programs run without cgroups and without namespaces of their own (the isolation `chroot`), in the network of this
machine.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from agspeed.version import __version__
from tests.lint import sources
from tests.python.support import wheels

__all__ = ["Image", "built", "why_none"]

_TOOLS = ("apt-config", "buildah", "mmdebstrap", "podman")
_BASE = "docker.io/library/debian:trixie-slim"
_NAME, _SUITE, _PYTHON = "agspeed-test", "trixie", "3.13"
_TIMEOUT_S = 3000
_PIP = "[global]\nno-index = true\nfind-links = /tmp/dist\n"
_HOME = "/var/lib/agspeed"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Images of Debian set it."""


def why_none() -> str | None:
    """Returns why no image can be built here, or None."""
    if missing := [name for name in _TOOLS if shutil.which(name) is None]:
        return f"{', '.join(missing)} are not on this machine: run make test-container"
    if platform.machine() != "x86_64":
        return "the wheels of the tests are for x86-64"
    return None if os.geteuid() == 0 else "only root can make the Debian of the image"


class Image:
    """An image that was built. Its storage is a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._storage = ["--root", str(folder / "storage"), "--runroot", str(folder / "run")]

    def command(self, *words: str, key: Path | None = None, **variables: str) -> list[str]:
        """Returns the command line that runs a program in a new container. key: of the job's logins."""
        made = _run(["buildah", *self._storage, "from", "--pull-never", _NAME]).strip()
        options = [f"--env={name}={value}" for name, value in variables.items()]
        if key is not None:
            options.append(f"--volume={key}:{_HOME}/.ssh/id_ed25519:ro")
        return ["buildah", *self._storage, "run", "--isolation", "chroot", *options, made, "--", *words]

    def run(self, *words: str, key: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a program in a new container to its end."""
        return subprocess.run(
            self.command(*words, key=key, **variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )

    def said(self, *words: str, key: Path | None = None, **variables: str) -> str:
        """Returns what a program says that has to end with status 0."""
        done = self.run(*words, key=key, **variables)
        assert done.returncode == 0, done
        return done.stdout.strip()


@contextlib.contextmanager
def built(folder: Path, recipe: str) -> Iterator[Image]:
    """Builds a recipe as its first lines say. At the end of the block, all is removed."""
    image = Image(folder)
    storage = image._storage
    context = folder / "context"
    (context / "dist").mkdir(parents=True)
    (context / "Containerfile").write_text(recipe)
    _wheels(context / "dist")
    base = _debian(folder)
    try:
        take = ["podman", *storage, "--events-backend=file", "import", "--quiet", f"--change=ENV PATH={_PATH}"]
        _run([*take, str(base), _BASE])
        base.unlink()
        build = ["podman", *storage, "--cgroup-manager=cgroupfs", "--events-backend=file", "build"]
        _run([*build, "--isolation=chroot", "--network=host", "--pull=never", "--tag", _NAME, str(context)])
        yield image
    finally:
        _run(["buildah", *storage, "rm", "--all"])
        _run(["buildah", *storage, "rmi", "--all", "--force"])


def _debian(folder: Path) -> Path:
    """Makes the base image's files. apt has the settings that this machine has for its downloads."""
    settings = [line for line in _run(["apt-config", "dump"]).splitlines() if line.startswith("Acquire::")]
    kept = [f"--aptopt={line}" for line in settings if line.split("::")[1].split()[0] in ("http", "https")]
    kept += [f"--aptopt={line}" for line in settings if line.startswith("Acquire::Check-")]
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    filters = ["Created-By: Packages", f"Codename: {release}", "Component: main", "Origin: Debian"]
    mirror = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)", *filters]).split()[0]
    (folder / "pip.conf").write_text(_PIP)
    pip = f"--customize-hook=copy-in {folder / 'pip.conf'} /etc"
    base = folder / "base.tar"
    _run(["mmdebstrap", "--mode=root", "--variant=minbase", *kept, pip, _SUITE, str(base), mirror])
    return base


def _wheels(folder: Path) -> None:
    """Puts agspeed, without its extension, and all that it needs into a folder."""
    project = tomllib.loads((sources.ROOT / "pyproject.toml").read_text())["project"]
    scripts = "".join(f"{name} = {function}\n" for name, function in project["scripts"].items())
    files = {name: content for name, content in wheels.files() if not name.endswith(".so")}
    files[f"agspeed-{__version__}.dist-info/entry_points.txt"] = f"[console_scripts]\n{scripts}".encode()
    wheels.write(folder, "agspeed", __version__, files, needs=project["dependencies"])
    wheels.write(folder, "torch", "2.15.0", {"torch/__init__.py": b"__version__ = '2.15.0'\n"})
    python = ["--only-binary=:all:", f"--python-version={_PYTHON}", "--implementation=cp"]
    platforms = [f"--platform=manylinux_2_{number}_x86_64" for number in (17, 27, 28)]
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", f"--dest={folder}", *python, *platforms]
    _run([*fetch, "numpy", *project["dependencies"]])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout
