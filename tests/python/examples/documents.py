# SPDX-License-Identifier: Apache-2.0
"""Finds the commands and the lines of Python that a Markdown document offers for copying, and runs commands.

test_readme.py uses it for README.md, and tests/python/docs for the pages of the documentation site.
"""

from __future__ import annotations

import ast
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMPLETED = {
    "with agspeed.paused():": "\n    pass",
    "@agspeed.optimize": "\ndef step(): ...",
}
"""Beginning of a statement -> the text that completes it."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
_IS_COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?:agspeed [a-z]|make [a-z]|pip |python |torchrun -)")


def fences(text: str, *languages: str) -> list[str]:
    """Returns the fenced blocks of the document `text`; if languages are named, only blocks in these."""
    return [block for language, block in _FENCE.findall(text) if not languages or language in languages]


def spans(text: str) -> list[str]:
    """Returns the code spans outside of fenced blocks, with a table's escaped bars unescaped."""
    found = re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))
    return list(dict.fromkeys(span.replace("\\|", "|") for span in found))


def commands(text: str, *languages: str) -> list[str]:
    """Returns the commands that a reader would type: lines of blocks without comments, and spans."""
    blocks = fences(text, *languages)
    lines = [re.split(r"\s{2,}#", line)[0].strip() for block in blocks for line in block.splitlines()]
    found = [line for line in (*lines, *spans(text)) if _IS_COMMAND.match(line)]
    return [one for line in dict.fromkeys(found) for one in _alternatives(line)]


def _alternatives(command: str) -> list[str]:
    """Splits `agspeed report show|html` into two commands, each with the files that it takes."""
    stem, _, last = command.rpartition(" ")
    if "|" not in last or "(" in command:
        return [command]
    files = {"show": " report.json", "html": " report.json", "compare": " report.json report.json"}
    return [f"{stem} {word}{files.get(word, '')}" for word in last.split("|")]


def snippets(text: str) -> list[str]:
    """Returns the statements in diffs and in code spans that call agspeed or torch."""
    added = [
        line[1:].partition("#")[0].strip() for block in fences(text) for line in block.splitlines() if line[:1] == "+"
    ]
    return [statement for statement in (*added, *spans(text)) if _is_statement(statement)]


def _is_statement(text: str) -> bool:
    if "agspeed" not in text or not re.search(r"[(@]|^import ", text):
        return False
    try:
        ast.parse(text + COMPLETED.get(text, ""))
    except SyntaxError:
        return False
    return True


def shell(line: str, folder: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """Runs a line in `folder` with this interpreter's programs and the checkout's package."""
    programs = home / "bin"
    programs.mkdir()
    (programs / "agspeed").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m agspeed "$@"\n')
    (programs / "agspeed").chmod(0o755)
    environment = os.environ | {
        "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT / "python" / "examples")]),
        "AGSPEED_CACHE_DIR": str(home / "cache"),
        "AGSPEED_BACKENDS": "native",
    }
    line = line.replace("FREE_PORT", str(_free_port()))
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=800, check=False
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
