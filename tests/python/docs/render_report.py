# SPDX-License-Identifier: Apache-2.0
"""Renders the pictures of a report for README.md and the site, from the kept report of a real run.

make pictures, or: .venv/bin/python -m tests.python.docs.render_report [--take build/demo/report.json]

A picture shows the upper part of the report's page in one colour scheme: the headline, the answers and the plans. The
charts between them are hidden. Chromium renders it, from the Debian package chromium. The pictures depend on the fonts
of the machine, so another machine's files differ.

The kept report is that of the first act of `make demo`. `--take` replaces it by the report of a new run in this
checkout. The figures stay as they were measured, and the paths of the machine become paths of an example.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from agspeed.reporting import model
from tests.python.reporting.browser import Browser

ROOT = Path(__file__).resolve().parents[3]
PICTURES = ROOT / "python" / "docs" / "pages" / "pictures"
REPORT = PICTURES / "report.json"
SCHEMES = ("light", "dark")
WIDTH = 900
_EXAMPLE = "/home/user/agspeed"
_MARGIN = 16

# Hides all but the header, the answers, the warnings and the plans. Returns by how much the table of plans is wider
# than its frame, and where the plans end.
_KEEP_UPPER_PART = """
const plans = document.querySelector('[aria-label="Plans"]'), card = plans.closest('section');
const kept = [...document.querySelectorAll('.answers, .warnings'), card];
for (const part of document.querySelectorAll('main > *, footer, .notice, button'))
  if (!kept.includes(part)) part.style.display = 'none';
[plans.scrollWidth - plans.clientWidth, Math.ceil(card.getBoundingClientRect().bottom + scrollY)]
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="render_report", description=__doc__.splitlines()[0])
    parser.add_argument("--take", type=Path, metavar="FILE", help="keep this report.json, and render it")
    given = parser.parse_args(argv)
    if shutil.which("chromium") is None:
        print("The pictures need chromium on PATH: install the Debian package chromium.", file=sys.stderr)
        return 1
    if given.take is not None:
        model.Report(without_paths(model.load(given.take).to_dict(), ROOT)).save(REPORT)
    for picture in render(PICTURES):
        print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size:,} bytes")
    return 0


def without_paths(report: dict[str, Any], checkout: Path) -> dict[str, Any]:
    """Returns the report of a run in `checkout` with the paths of an example in place of the machine's paths."""
    text = json.dumps(report).replace(json.dumps(str(checkout))[1:-1], _EXAMPLE)
    replaced: dict[str, Any] = json.loads(text)
    return replaced


def render(folder: Path) -> list[Path]:
    """Writes a picture for each colour scheme into `folder`, and returns their paths."""
    pictures = []
    with tempfile.TemporaryDirectory() as scratch, Browser(Path(scratch) / "profile") as browser:
        page = model.load(REPORT).save(Path(scratch) / "report.html")
        for scheme in SCHEMES:
            pictures.append(folder / f"report-{scheme}.png")
            pictures[-1].write_bytes(_picture(browser, page, scheme))
    return pictures


def _picture(browser: Browser, page: Path, scheme: str) -> bytes:
    """Returns a PNG file of the upper part. It is as wide as the table of plans needs, and at least `WIDTH` wide."""
    width = WIDTH
    browser.open(page, width, scheme)
    excess, bottom = browser.evaluate(_KEEP_UPPER_PART)
    if excess > 0:
        width += excess
        browser.open(page, width, scheme)
        _, bottom = browser.evaluate(_KEEP_UPPER_PART)
    clip = {"x": 0, "y": 0, "width": width, "height": bottom + _MARGIN, "scale": 1}
    answer = browser.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
    return base64.b64decode(answer["data"])


if __name__ == "__main__":
    sys.exit(main())
