# SPDX-License-Identifier: Apache-2.0
"""Listings in a report: the marked line among its neighbours, and long texts with the number of omitted lines."""

from __future__ import annotations

from pathlib import Path

from agspeed.reporting import listing


def test_an_excerpt_marks_its_line_and_numbers_all(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("".join(f"line {number}\n" for number in range(1, 31)))
    shown = listing.excerpt(str(tmp_path / "net.py"), 10)
    assert shown is not None
    lines = shown.splitlines()
    assert lines[0].split() == ["8", "line", "8"] and lines[-1].split() == ["22", "line", "22"]
    assert [line for line in lines if line.startswith(">")] == [">   10  line 10"]


def test_a_place_that_cannot_be_read_has_no_excerpt() -> None:
    assert listing.excerpt("<stdin>", 3) is None


def test_a_long_text_says_how_much_is_missing() -> None:
    shown = listing.shortened("\n".join(map(str, range(1000))))
    assert shown is not None and shown.endswith("... and 750 more lines")
    assert listing.shortened("a\nb") == "a\nb" and listing.shortened("  \n") is None
