# SPDX-License-Identifier: Apache-2.0
"""The agent's part of an installation. It changes nothing before all hosts can install, and takes its change back if
the launcher does not keep it.

    launcher                     agent
    {"wheel": 0} bytes  ──►      keeps the wheel in a private folder, and asks pip whether it can be installed
                        ◄──      {"staged": is_there}      true: this wheel is installed, and nothing is to do
    {"install": 0}      ──►      installs
                        ◄──      {"installed": 0}
    {"keep": 0}         ──►      ends
    {"end": 0}, or the end of the connection, at any time:  takes the change back
                        ◄──      {"undone": ""}            or a sentence, if something is left

Threading: the agent's thread.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agspeed.errors import AgspeedError, UserError
from agspeed.launch import frames
from agspeed.launch.install import installed_wheel
from agspeed.launch.launcher_link import LauncherLink

__all__ = ["run"]

_NAME_OF_WHEEL = re.compile(r"[A-Za-z0-9_.+-]{1,200}\.whl")
_PIP = ("-m", "pip", "--no-input", "--disable-pip-version-check", "--quiet", "--quiet")
_LONGEST_REASON = 300


def run(job: Mapping[str, Any], link: LauncherLink) -> None:
    """Installs, until the launcher keeps it. job: "wheel", its "size" and "sha256", and the "torch" to install, or "".

    Raises: ClosedError if the change was taken back; UserError or AgspeedError if the wheel cannot be installed.
    """
    if importlib.util.find_spec("pip") is None:
        raise UserError(f"{sys.executable} has no pip; run {sys.executable} -m ensurepip there.")
    with tempfile.TemporaryDirectory(prefix="agspeed-install-") as name:
        folder = Path(name)
        wheel = _receive(job, link, folder)
        things = [str(wheel)] if not _is_installed(wheel) else []
        things += [f"torch=={job['torch']}"] if job["torch"] else []
        if things:
            _pip(folder, "install", "--dry-run", *things)
        change = _Change(folder)
        link.send("staged", not things)
        link.wait_for("install")
        try:
            if things:
                _pip(folder, "install", "--no-warn-script-location", *things)
            link.send("installed", 0)
            link.wait_for("keep")
        except frames.ClosedError:
            link.send("undone", change.take_back())
            raise
        except AgspeedError as error:
            raise AgspeedError(f"{error} {change.take_back()}".rstrip()) from None


class _Change:
    """The change that pip makes on this host."""

    def __init__(self, folder: Path) -> None:
        """folder: for the wheel of the agspeed that is replaced. Raises: UserError if it was not made from one."""
        self._folder = folder
        self._before, self._entries = _packages(), _entries()
        self._earlier: Path | None = None
        if (found := installed_wheel.found_here()) is not None:
            name, content = installed_wheel.packed(found)
            self._earlier = folder / "earlier" / name
            self._earlier.parent.mkdir()
            self._earlier.write_bytes(content)

    def take_back(self) -> str:
        """Removes the packages that have come, and installs the earlier agspeed again.

        Returns: a sentence if that fails; else an empty text.
        """
        pieces = _entries() - self._entries
        if not any((each / "RECORD").exists() for each in pieces):  # pip was not done, and cannot remove them
            for each in pieces:
                shutil.rmtree(each, ignore_errors=True)
        come = sorted(_packages() - self._before)
        try:
            if come:
                _pip(self._folder, "uninstall", "--yes", *come)
            if self._earlier is not None and not _is_installed(self._earlier):
                _pip(self._folder, "install", "--no-deps", "--force-reinstall", str(self._earlier))
        except AgspeedError as error:
            return f"What was installed could not be taken back: {error}"
        return ""


def _receive(job: Mapping[str, Any], link: LauncherLink, folder: Path) -> Path:
    """Reads the wheel. Raises: ClosedError if the launcher ends before."""
    match job:
        case {"wheel": str(name), "size": int(size), "sha256": str(digest)} if _NAME_OF_WHEEL.fullmatch(name):
            path = folder / name
        case _:
            raise AgspeedError("the launcher has sent no description of a wheel; use one version of agspeed.")
    found, num_bytes = hashlib.sha256(), 0
    with path.open("xb") as file:
        while num_bytes < size:
            while not link.received:
                link.poll(())
            frame = link.received.pop(0)
            if frame.kind == "end":
                raise frames.ClosedError
            if frame.kind == "wheel":
                _write(file, frame.data, folder)
                found.update(frame.data)
                num_bytes += len(frame.data)
    if found.hexdigest() != digest:
        raise AgspeedError(f"{name} has come with other bytes than it was sent with; try again.")
    return path


def _write(file: Any, data: bytes, folder: Path) -> None:
    try:
        file.write(data)
    except OSError as error:
        raise AgspeedError(f"{folder.parent}: {error.strerror}; free some room there.") from None


def _is_installed(wheel: Path) -> bool:
    """Whether the files of the wheel are installed already."""
    found = installed_wheel.found_here()
    if found is None:
        return False
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [each for each in opened.namelist() if each.endswith(".dist-info/RECORD")]
        wanted = installed_wheel.lines_of(opened.read(name).decode())
    return wanted <= installed_wheel.lines_of(found.read_text("RECORD") or "")


def _packages() -> set[str]:
    """The names of the packages in the folder into which pip installs."""
    folder = sysconfig.get_path("purelib")
    return {each.metadata["Name"] for each in importlib.metadata.distributions(path=[folder]) if each.metadata["Name"]}


def _entries() -> set[Path]:
    """The folders of agspeed where pip installs packages."""
    return {path for path in Path(sysconfig.get_path("purelib")).glob(f"{installed_wheel.NAME}*") if path.is_dir()}


def _pip(folder: Path, *words: str) -> None:
    """Runs pip. Raises: AgspeedError with its reason."""
    # In an empty folder, no file takes the place of a module.
    done = subprocess.run(
        [sys.executable, *_PIP, *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return
    errors = [line.removeprefix("ERROR:").strip() for line in done.stderr.splitlines() if line.startswith("ERROR:")]
    said = (errors or done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
    text = f"pip of {sys.executable} cannot {words[0]} {_shown(words[-1])}: {said[:_LONGEST_REASON].rstrip('.')}"
    raise AgspeedError(f"{text}; {_remedy(done.stderr)}.")


def _shown(thing: str) -> str:
    return Path(thing).name


def _remedy(said: str) -> str:
    remedies: Sequence[tuple[str, str]] = [
        ("externally-managed-environment", "name the interpreter of a virtual environment with --remote-python"),
        ("No space left", f"free some room in {sysconfig.get_path('purelib')}"),
        ("No matching distribution", "install that package there, or let the host reach a package index"),
        ("not a supported wheel", "name a wheel for that Python and machine with --wheel"),
        (
            "Permission denied",
            "install as a user who may write there, or name another interpreter with --remote-python",
        ),
    ]
    found = [remedy for part, remedy in remedies if part in said]
    return found[0] if found else "run pip there by hand to see more"
