# SPDX-License-Identifier: Apache-2.0
"""Installs candidates for processes that a test starts: a module and its entry points, where Python finds them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str, classes: dict[str, str]) -> None:
    """Writes a plug-in package into `folder` and adds the folder to PYTHONPATH.

    Args:
        classes: the candidates' names and their classes in `source`.
    """
    (folder / "ag_test_plugin.py").write_text(source)
    info = folder / "ag_test_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ag-test-plugin\nVersion: 1.0\n")
    lines = [f"{name} = ag_test_plugin:{cls}" for name, cls in classes.items()]
    (info / "entry_points.txt").write_text("[agspeed.backends]\n" + "\n".join(lines) + "\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
