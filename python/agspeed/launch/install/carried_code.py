# SPDX-License-Identifier: Apache-2.0
"""Runs this version's agent on a host without agspeed: the launcher sends the package's Python files first.

The files stay in memory there. Pure, except that it reads the package's own files.
"""

from __future__ import annotations

import functools
import io
import zipfile
from pathlib import Path

__all__ = ["packed", "words"]

_PACKAGE = Path(__file__).resolve().parents[2]
# Every Python can read this text, so an old one names its version, and not a line of agspeed that it cannot read.
_RUN = """
import sys
sys.path[:] = [each for each in sys.path if each]
if not (3, 11) <= sys.version_info[:2] < (3, 14):
    sys.exit("agspeed needs Python 3.11 to 3.13, and %s is %s" % (sys.executable, sys.version.split()[0]))
import os
code, left = os.memfd_create("agspeed"), int(sys.argv[1])
while left:
    data = os.read(0, min(left, 1 << 16))
    if not data:
        sys.exit("the launcher has ended")
    left -= len(data)
    os.write(code, data)
sys.path.insert(0, "/proc/self/fd/%d" % code)
from agspeed.launch import agent
sys.exit(agent.main())
"""


@functools.cache
def packed() -> bytes:
    """Returns the Python files of the package, as a ZIP archive."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        for path in sorted(_PACKAGE.rglob("*.py")):
            opened.write(path, path.relative_to(_PACKAGE.parent))
    return archive.getvalue()


def words(code: bytes) -> list[str]:
    """Returns the words behind `python` that read `code` from stdin, and then run the agent."""
    return ["-c", _RUN, str(len(code))]
