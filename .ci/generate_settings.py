#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes runtime/base/settings.md, the documentation of the environment variables, from runtime/base/settings.def."""

from __future__ import annotations

import re
from pathlib import Path

BASE = Path(__file__).resolve().parent.parent / "runtime" / "base"
OUTPUT = BASE / "settings.md"
ROW = re.compile(r'^AG_SETTING\(\s*\w+,\s*([\w:]+),\s*(.+?),\s*"([A-Z]+_\w+)",\s*((?:"(?:\\.|[^"])*"\s*)+)\)', re.M | re.S)


def markdown(definitions: str) -> str:
    """The table of all rows, in their order."""
    lines = [
        "# Environment variables of the C++ side",
        "",
        "Generated from `settings.def` by `make format`. What users choose per model is listed by `agspeed config`.",
        "",
        "| variable | type | default | what it does |",
        "|---|---|---|---|",
    ]
    for kind, default, variable, texts in ROW.findall(definitions):
        documentation = "".join(re.findall(r'"((?:\\.|[^"])*)"', texts))
        lines.append(f"| `{variable}` | {kind.removeprefix('std::')} | `{default}` | {documentation} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(markdown((BASE / "settings.def").read_text()))
