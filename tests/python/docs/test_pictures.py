# SPDX-License-Identifier: Apache-2.0
"""The pictures of a report: their report is valid and names no machine, and the files are small pictures that render
again."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from agspeed.reporting import model
from tests.python.docs import render_report

MAX_REPORT_BYTES, MAX_PICTURE_BYTES = 60_000, 300_000
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunks(picture: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields (kind, content) for each chunk of a PNG file, whose checksums are compared."""
    assert picture.startswith(SIGNATURE)
    at = len(SIGNATURE)
    while at < len(picture):
        (length,) = struct.unpack_from(">I", picture, at)
        kind, content = picture[at + 4 : at + 8], picture[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", picture, at + 8 + length) == (zlib.crc32(kind + content),), kind
        yield kind, content
        at += 12 + length


def size(picture: Path) -> tuple[int, int]:
    """Returns width and height of a complete PNG file."""
    found = list(chunks(picture.read_bytes()))
    assert (found[0][0], found[-1][0]) == (b"IHDR", b"IEND")
    assert zlib.decompress(b"".join(content for kind, content in found if kind == b"IDAT"))
    width, height = struct.unpack_from(">II", found[0][1])
    return width, height


def test_their_report_is_valid_small_and_settled() -> None:
    assert render_report.REPORT.stat().st_size < MAX_REPORT_BYTES
    report = model.load(render_report.REPORT).to_dict()
    assert report["status"]["state"] == "tuned"
    assert [plan["name"] for plan in report["plans"] if plan["state"] == "chosen"] == [report["decision"]["chosen"]]


FOREIGN_PATH = re.compile(r"(?<![\w~/])/(?!home/user/)[\w.-]+/[^\"\s]*")


def test_their_report_names_no_machine() -> None:
    text = render_report.REPORT.read_text(encoding="utf-8")
    assert "/home/user/" in text
    assert not FOREIGN_PATH.findall(text)


def test_paths_of_a_checkout_become_paths_of_an_example() -> None:
    report = model.empty_report("Model")
    report["reproduce"]["command"] = "/srv/me/agspeed/.venv/bin/python train.py"
    assert FOREIGN_PATH.search(str(report))
    shown = render_report.without_paths(report, Path("/srv/me/agspeed"))
    assert shown["reproduce"]["command"] == "/home/user/agspeed/.venv/bin/python train.py"
    model.validate(shown)


@pytest.mark.parametrize("scheme", render_report.SCHEMES)
def test_a_picture_is_small_and_complete(scheme: str) -> None:
    picture = render_report.PICTURES / f"report-{scheme}.png"
    assert picture.stat().st_size < MAX_PICTURE_BYTES
    width, height = size(picture)
    assert render_report.WIDTH <= width <= 1.2 * render_report.WIDTH
    assert width / 2 < height < width * 2


@pytest.mark.chromium
def test_the_pictures_render_again(tmp_path: Path) -> None:
    """New pictures may have other sizes than the kept pictures, because machines have other fonts."""
    pictures = render_report.render(tmp_path)
    assert [picture.name for picture in pictures] == [f"report-{scheme}.png" for scheme in render_report.SCHEMES]
    light, dark = (size(picture) for picture in pictures)
    assert light == dark
