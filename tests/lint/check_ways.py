# SPDX-License-Identifier: Apache-2.0
"""Every file and function that the README's section "Follow the data" names exists."""

from __future__ import annotations

import re

from tests.lint import sources

MAX_FILES = 8


def ways() -> list[list[tuple[str, str]]]:
    """Returns (file, function) in order, for each row of the section "Follow the data"."""
    section = sources.read("README.md").split("## Follow the data\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if "→" in line]
    return [re.findall(r"`([\w/.]+)` `(\w+)`", row) for row in rows]


def test_each_way_is_short_and_whole() -> None:
    found = ways()
    assert len(found) == 3
    assert all(1 < len(way) <= MAX_FILES for way in found), [len(way) for way in found]


def test_each_file_has_the_function_named_beside_it() -> None:
    missing = []
    for path, function in (stop for way in ways() for stop in way):
        text = sources.read(path) if path in sources.tracked() else ""
        definition = rf"\bdef {function}\(" if path.endswith(".py") else rf"^\S[^;\n]*\b{function}\("
        if not re.search(definition, text, re.MULTILINE):
            missing.append(f"{path}: {function}")
    assert not missing, f"the README's section Follow the data names what is not there: {missing}"
