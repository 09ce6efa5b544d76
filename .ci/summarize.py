#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up the machine-readable results of all test suites and prints one closing line.

    python .ci/summarize.py [--status N]      ->  "812 passed, 0 failed, 3 skipped"

Reads build/dev/test-results: gtest/*.xml (one file per GoogleTest binary), ctest.xml, lit.xml and pytest.xml, and
exit-codes.json (what each suite returned). A binary that died before it wrote its cases, or a suite that failed without
naming a case, counts as one failure. Exits with 1 when anything failed or nothing ran. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / "build" / "dev" / "test-results"


def outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    # CTest calls a test "skipped" when its binary was never built.
    return "failed" if "Unable to find executable" in (skipped.get("message") or "") else "skipped"


def count_cases(path: Path) -> Counter[str]:
    """Counts the cases of a JUnit-like file; a missing or truncated file has none."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return Counter()
    return Counter(outcome(case) for case in root.iter("testcase"))


def count_cpp(results: Path) -> Counter[str]:
    """GoogleTest cases of every binary, plus the CTest entries that wrote no cases of their own."""
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


def summarize(results: Path = RESULTS, status: int = 0) -> int:
    """Prints the closing line. `status` is the exit code of whatever ran the suites. Returns the exit code to use."""
    counts = count_suites(results)
    total = sum(counts.values(), Counter())
    if status != 0 and not total["failed"]:
        total["failed"] += 1
    for suite, count in counts.items():
        print(f"{suite}: {describe(count)}")
    print(describe(total), flush=True)
    return 0 if total["passed"] and not total["failed"] else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--status", type=int, default=0, help="exit code of the run that produced the results")
    return summarize(status=parser.parse_args().status)


if __name__ == "__main__":
    sys.exit(main())
