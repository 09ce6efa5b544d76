# SPDX-License-Identifier: Apache-2.0
"""A hook of mkdocs: writes the help texts of the command line into the page that asks for them.

The line `<!-- help: cache prune -->` becomes the output of `agspeed cache prune --help`. A line that names no command
fails the build. The command line needs neither torch nor the native extension.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PACKAGE = str(Path(__file__).resolve().parents[1])
_LINE = re.compile(r"^<!-- help:([ \w]*) -->$", re.M)
_COLUMNS = "100"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces the lines of a page; mkdocs calls this for every page."""
    if not _LINE.search(markdown):
        return markdown
    texts = help_texts()
    return _LINE.sub(lambda line: f"```text\n{texts[line[1].strip()]}```", markdown)


def help_texts() -> dict[str, str]:
    """Returns {command without "agspeed", for example "cache prune": its help text}."""
    if _PACKAGE not in sys.path:
        sys.path.insert(0, _PACKAGE)
    from agspeed.cli.main import _parser

    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = _COLUMNS  # argparse reads the width there
    try:
        return {words: parser.format_help() for words, parser in _commands(_parser())}
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)


def _commands(parser: argparse.ArgumentParser, words: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from _commands(below, f"{words} {name}".strip())
