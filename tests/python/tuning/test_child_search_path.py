# SPDX-License-Identifier: Apache-2.0
"""A compile child imports from the same folders as the training process, and from no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lint import sources

_WORKER = """
import json, os, sys

os.write(int(sys.argv[1]), json.dumps([sys.path, sys.modules["agspeed"].__file__]).encode() + b"\\n")
"""
_TRAINING = """
import json, os, sys

sys.path[:] = json.loads(sys.argv[1])
from agspeed.tuning.child import process

process.WORKER = "agspeed_shown"
child = process.Child()
child.start()
os.set_blocking(child._answers, True)
print(os.read(child._answers, 1 << 20).decode() or child._death())
child.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a:", "a::b"], ids=repr)
@pytest.mark.parametrize("flags", [[], ["-I"]], ids=str)
def test_a_path_with_any_letter_adds_no_other_folder(tmp_path: Path, name: str, flags: list[str]) -> None:
    """The working directory has a package of the same name, which is neither imported nor on the path."""
    odd, working = tmp_path / name, tmp_path / "work"
    odd.mkdir()
    (odd / "agspeed_shown.py").write_text("import agspeed\n" + _WORKER)
    for package in ("agspeed", "json", "runpy", "torch"):
        (working / package).mkdir(parents=True)
        (working / package / "__init__.py").write_text("import pathlib\npathlib.Path('imported').touch()\n")
    path = [str(odd), str(sources.ROOT / "python"), *(entry for entry in sys.path if entry)]
    done = subprocess.run(
        [sys.executable, *(flags or ["-P"]), "-c", _TRAINING, json.dumps(path)],
        cwd=working,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, home = json.loads(done.stdout)
    assert found == path
    assert Path(home) == sources.ROOT / "python" / "agspeed" / "__init__.py"
    assert not (working / "imported").exists()
