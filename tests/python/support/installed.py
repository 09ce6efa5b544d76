# SPDX-License-Identifier: Apache-2.0
"""The package as an installation shows it, for tests of the wheel's entry points."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

_PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def installed(folder: Path) -> dict[str, str]:
    """Returns an environment in which Python finds the package with its torch entry points, from metadata in
    `folder`."""
    entry_points = tomllib.loads(_PROJECT.read_text())["project"]["entry-points"]["torch.backends"]
    info = folder / "agspeed-0.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: agspeed\nVersion: 0.0\n")
    lines = [f"{name} = {target}" for name, target in entry_points.items()]
    (info / "entry_points.txt").write_text("[torch.backends]\n" + "\n".join(lines) + "\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
