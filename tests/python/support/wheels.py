# SPDX-License-Identifier: Apache-2.0
"""Wheels for tests: of this checkout with its built extension, and of a few lines."""

from __future__ import annotations

import base64
import hashlib
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from agspeed.version import __version__
from tests.lint import sources

__all__ = ["TAG", "files", "of_this_checkout", "write"]

TAG = "cp{0}{1}-cp{0}{1}-linux_x86_64".format(*sys.version_info)
_PACKAGE = sources.ROOT / "python"


def of_this_checkout(folder: Path) -> Path:
    """Writes agspeed's wheel, as `make wheel` would from the built extension, but not for other machines."""
    project = tomllib.loads((sources.ROOT / "pyproject.toml").read_text())["project"]
    return write(folder, "agspeed", __version__, dict(files()), TAG, project["dependencies"])


def write(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes],
    tag: str = "py3-none-any",
    needs: Sequence[str] = (),
) -> Path:
    """Writes a wheel with these files. needs: other packages."""
    needed = "".join(f"Requires-Dist: {each}\n" for each in needs)
    info = f"{name}-{version}.dist-info"
    whole = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
        **files,
    }
    record = "".join(f"{path},{_digest(content)},{len(content)}\n" for path, content in whole.items())
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as opened:
        for each, content in {**whole, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}.items():
            opened.writestr(each, content)
    return path


def files() -> Iterator[tuple[str, bytes]]:
    """Yields the files of the package, with the extension: (name in a wheel, content)."""
    for path in sorted((_PACKAGE / "agspeed").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield str(path.relative_to(_PACKAGE)), path.read_bytes()


def _digest(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
