#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up the machine-readable results of all test suites and prints one closing line.

    python .ci/summarize.py [--status N] [BUILD ...]      ->  "812 passed, 0 failed, 3 skipped"

Reads BUILD/test-results of each build folder: gtest/*.xml (one file per GoogleTest binary), ctest.xml, lit.xml,
pytest.xml and exit-codes.json (the exit code of each suite). A binary that died before it wrote its cases counts as one
failure, and so does a suite that failed without naming a case. Exits with 1 if anything failed or nothing ran. Uses the
standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("AGSPEED_BUILD_DIR", ROOT / "build" / "dev"))
"""The build folder in use; `make TORCH=2.11` names another one."""


def outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    # CTest calls a test "skipped" when its binary was never built.
    return "failed" if "Unable to find executable" in (skipped.get("message") or "") else "skipped"


def count_cases(path: Path) -> Counter[str]:
    """Counts the cases of a JUnit-like file. A missing or truncated file counts as empty."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return Counter()
    return Counter(outcome(case) for case in root.iter("testcase"))


def count_cpp(results: Path) -> Counter[str]:
    """Counts the GoogleTest cases of every binary, and the CTest entries that wrote no cases of their own."""
    total: Counter[str] = Counter()
    try:
        entries = list(ElementTree.parse(results / "ctest.xml").getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        entries = []
    for entry in entries:
        cases = count_cases(results / "gtest" / f"{entry.get('name')}.xml")
        entry_failed = outcome(entry) == "failed"
        if not cases or (entry_failed and not cases["failed"]):
            cases[outcome(entry)] += 1
        total += cases
    return total


def count_suites(results: Path) -> dict[str, Counter[str]]:
    counts = {
        "C++": count_cpp(results),
        "lit": count_cases(results / "lit.xml"),
        "Python": count_cases(results / "pytest.xml"),
    }
    try:
        codes = json.loads((results / "exit-codes.json").read_text())
    except (OSError, ValueError):
        codes = {}
    for suite, code in codes.items():
        if code != 0 and not counts[suite]["failed"]:
            counts[suite]["failed"] += 1
    return counts


def describe(count: Counter[str]) -> str:
    text = f"{count['passed']} passed, {count['failed']} failed"
    return text + (f", {count['skipped']} skipped" if count["skipped"] else "")


def summarize(builds: Sequence[Path], status: int = 0) -> int:
    """Prints the closing line and returns the exit code to use. `status` is the exit code of the command that ran the
    suites."""
    total: Counter[str] = Counter()
    for build in builds:
        counts = count_suites(build / "test-results")
        total += sum(counts.values(), Counter())
        for suite, count in counts.items():
            if count:
                print(f"{build.name}, {suite}: {describe(count)}")
    if status != 0 and not total["failed"]:
        total["failed"] += 1
    print(describe(total), flush=True)
    return 0 if total["passed"] and not total["failed"] else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--status", type=int, default=0, help="exit code of the run that produced the results")
    parser.add_argument("builds", nargs="*", type=Path, default=[BUILD], help="build folders")
    given = parser.parse_args()
    return summarize(given.builds, given.status)


if __name__ == "__main__":
    sys.exit(main())
