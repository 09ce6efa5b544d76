#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds dist/agspeed-*.whl for the running Python, with one native extension for each release of torch that is named.

        python .ci/build_wheel.py dist [2.11 2.15 ...]     (without releases: for the installed torch)

A torch that is not installed is downloaded without its dependencies; its headers and libraries stay in build/torch.
Standard library and pip only.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_NEEDED = re.compile(r"torch/(version\.py|include/.*|lib/lib(c10|torch_cpu|torch_python)\.so)")


def known_releases() -> dict[str, str]:
    """The versions of torch by release: {"2.11": "2.11.0"}, oldest first."""
    lines = (ROOT / ".ci" / "torch-versions.txt").read_text().splitlines()
    return {fields[0]: fields[1] for fields in map(str.split, lines) if fields[0] != "#"}


def installed() -> Path:
    """The folder of the torch that the running Python imports."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None, f"{sys.executable} has no torch: run `make setup`"
    return Path(spec.origin).parent


def version_in(folder: Path) -> str:
    """The version of the torch in a folder, without the flavour that follows "+"."""
    found = re.search(r"__version__ = '([^'+]+)", (folder / "version.py").read_text())
    assert found is not None, f"{folder} holds no torch"
    return found[1]


def folder_of(version: str) -> Path:
    """Returns the folder `torch` of a version. Downloads that version if it is neither there nor installed."""
    if version_in(installed()) == version:
        return installed()
    home = ROOT / "build" / "torch" / f"{version}-cp{sys.version_info[0]}{sys.version_info[1]}"
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=_made(home.parent)) as folder:
            print(f"downloading torch {version}", flush=True)
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            subprocess.run([*pip, "--dest", folder, f"torch=={version}"], check=True)
            (archive,) = Path(folder).glob("torch-*.whl")
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(f"{folder}/out", [name for name in wheel.namelist() if _NEEDED.fullmatch(name)])
            Path(folder, "out").rename(home)
    return home / "torch"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main() -> int:
    dist, *names = sys.argv[1:]
    known = known_releases()
    if unknown := [name for name in names if name not in known]:
        print(f"agspeed is not built for torch {', '.join(unknown)}, but for {', '.join(known)}", file=sys.stderr)
        return 1
    # The newest release comes first because the build's own tools use the first one.
    folders = [folder_of(known[name]) for name in sorted(set(names), key=list(known).index, reverse=True)]
    torches = f"cmake.define.AG_TORCH_DIRS={';'.join(map(str, folders or [installed()]))}"
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-build-isolation"]
    subprocess.run([*pip, "--no-deps", "--wheel-dir", dist, "-C", torches, str(ROOT)], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
