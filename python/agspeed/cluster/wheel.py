# SPDX-License-Identifier: Apache-2.0
"""The wheel that `agspeed cluster up` installs: a file, or one made from this host's own agspeed.

Any thread; stateless.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agspeed.errors import UserError
from agspeed.launch.check.findings import Seen
from agspeed.launch.install import installed_wheel
from agspeed.version import __version__

__all__ = ["Wheel", "mismatches", "of_file", "of_this_host"]

_MARGIN_BYTES = 32 << 20
_EXTENSION = re.compile(r"agspeed/_native_torch(\d)(\d+)\..+\.so")
_NAME = re.compile(r"agspeed-([^-]+)-((?:cp|py)[0-9.a-z]+)-[^-]+-[^-]+\.whl")


@dataclass(frozen=True)
class Wheel:
    """A wheel of this version.

    Attributes:
        pythons: the tags of its Pythons, such as cp312.
        torches: the releases of torch that it has extensions for, such as 2.15.
        num_bytes: its size when it is installed.
    """

    name: str
    content: bytes
    pythons: Sequence[str]
    torches: Sequence[str]
    num_bytes: int


def of_file(path: Path) -> Wheel:
    """Reads a wheel. Raises: UserError if it is none of this version."""
    try:
        return _described(path.name, path.read_bytes())
    except OSError as error:
        raise UserError(f"--wheel {path}: {error.strerror}; name a wheel of agspeed.") from None


def of_this_host() -> Wheel:
    """Makes a wheel of the agspeed that runs. Raises: UserError if it was not installed from one."""
    found = installed_wheel.found_here()
    if found is None or not Path(str(found.locate_file("agspeed/version.py"))).samefile(_own_version()):
        raise UserError(
            "this agspeed is not installed from a wheel, so it cannot be copied to other hosts; build one with make "
            "wheel, and name it with --wheel."
        )
    return _described(*installed_wheel.packed(found))


def mismatches(wheel: Wheel, seen: Sequence[Seen]) -> Iterator[str]:
    """Yields a sentence for each reason why the wheel cannot run on a host."""
    for each in seen:
        major, minor = each.facts.python.split(".")[:2]
        if not {f"cp{major}{minor}", f"py{major}"}.intersection(wheel.pythons):
            yield (
                f"host {each.name} has Python {each.facts.python}, and {wheel.name} is for {', '.join(wheel.pythons)}; "
                "name such an interpreter with --remote-python, or another wheel with --wheel."
            )
        release = ".".join(each.facts.torch.split(".")[:2])
        if each.facts.torch and wheel.torches and release not in wheel.torches:
            yield (
                f"host {each.name} has torch {each.facts.torch}, and {wheel.name} is for torch "
                f"{', '.join(wheel.torches)}; install such a torch there, or name another wheel with --wheel."
            )
        if 0 <= each.facts.room < wheel.num_bytes + _MARGIN_BYTES:
            yield (
                f"host {each.name} has {each.facts.room >> 20} MiB free where Python's packages are, and agspeed needs "
                f"{(wheel.num_bytes + _MARGIN_BYTES) >> 20} MiB; free some room there."
            )


def _described(name: str, content: bytes) -> Wheel:
    found = _NAME.fullmatch(name)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as opened:
            files = opened.infolist()
    except zipfile.BadZipFile:
        found = None
    if found is None or found[1].partition("+")[0] != __version__:
        raise UserError(
            f"{name} is no wheel of agspeed {__version__}, the version of this host; name one with --wheel."
        )
    extensions = [each for file in files if (each := _EXTENSION.fullmatch(file.filename))]
    return Wheel(
        name,
        content,
        pythons=found[2].split("."),
        torches=sorted({f"{each[1]}.{each[2]}" for each in extensions}, key=lambda text: [*map(int, text.split("."))]),
        num_bytes=sum(file.file_size for file in files),
    )


def _own_version() -> Path:
    return Path(__file__).resolve().parents[1] / "version.py"
