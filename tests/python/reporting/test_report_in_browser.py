# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: no complaints, every plot is there, and the layout fits a desktop and a phone.

REPORT_SCREENSHOTS=<folder> keeps screenshots for a person to check.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agspeed.reporting import model
from agspeed.reporting.html import compare_page
from tests.python.reporting import report_sample
from tests.python.reporting.browser import Browser
from tests.python.support.poisoned_report import ATTACK, CHARTS, poisoned_report

pytestmark = pytest.mark.chromium

WIDTHS = (1280, 768, 390)
SMALLEST_TEXT_PX = 10.5
LEAST_CONTRAST = 4.5

VISIBLE = "const visible = [...document.querySelectorAll('svg[data-chart]')].filter(s => s.getClientRects().length);"

# Finds texts of drawings that are too small, extend beyond their drawing, or overlap.
TEXT_FAULTS = (
    VISIBLE
    + """
const faults = [];
for (const svg of visible) {
  const frame = svg.getBoundingClientRect(), scale = frame.width / svg.viewBox.baseVal.width, boxes = [];
  for (const text of svg.querySelectorAll('text')) {
    const box = text.getBoundingClientRect(), name = `${svg.dataset.chart}: ${text.textContent}`;
    if (parseFloat(getComputedStyle(text).fontSize) * scale < SMALLEST) faults.push(`too small: ${name}`);
    if (box.left < frame.left - 3 || box.right > frame.right + 3) faults.push(`leaves its drawing: ${name}`);
    for (const other of boxes) {
      const covered = Math.min(box.right, other.box.right) - Math.max(box.left, other.box.left) > 2
        && Math.min(box.bottom, other.box.bottom) - Math.max(box.top, other.box.top) > 4;
      if (covered) faults.push(`covers "${other.name}": ${name}`);
    }
    boxes.push({box, name});
  }
}
faults""".replace("SMALLEST", str(SMALLEST_TEXT_PX))
)

# Computes the contrast ratio (WCAG) of every text on the page with the nearest opaque background behind it.
LOW_CONTRAST = """
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const rgba = (css) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = css; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data]; };
const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255)
  .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const behind = (node) => { for (; node; node = node.parentElement) {
  const color = rgba(getComputedStyle(node).backgroundColor);
  if (color[3] > 250) return color; } return [255, 255, 255]; };
const found = [];
for (const node of document.querySelectorAll('body *:not(script)')) {
  const own = [...node.childNodes].some(child => child.nodeType == 3 && child.textContent.trim());
  if (!own || !node.getClientRects().length) continue;
  const style = getComputedStyle(node);
  const a = luminance(rgba(node.closest('svg') ? style.fill : style.color)), b = luminance(behind(node));
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (ratio < LEAST) found.push(`${ratio.toFixed(2)}: ${node.textContent.trim().slice(0, 40)}`);
}
found""".replace("LEAST", str(LEAST_CONTRAST))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    model.Report(report_sample.report()).save(folder / "full.html")
    model.Report(model.empty_report("fresh")).save(folder / "empty.html")
    model.Report(poisoned_report()).save(folder / "poisoned.html")
    model.write_page(folder / "both.html", compare_page.render(report_sample.report(), report_sample.report("Other")))
    return folder


@pytest.fixture(autouse=True)
def nothing_complains(browser):
    browser.complaints.clear()
    yield
    browser.evaluate("1")  # receives events that are still in flight
    assert browser.complaints == []


def overflow(browser) -> int:
    return browser.evaluate("document.documentElement.scrollWidth - innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_page_reads_well(browser, folder, width, scheme):
    browser.open(folder / "full.html", width, scheme)
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert overflow(browser) <= 0
    assert sorted(browser.evaluate(f"{VISIBLE} visible.map(s => s.dataset.chart)")) == sorted(CHARTS)
    assert browser.evaluate(f"{VISIBLE} Math.min(...visible.map(s => s.getBoundingClientRect().width))") > 250
    assert browser.evaluate(TEXT_FAULTS) == []
    assert browser.evaluate(LOW_CONTRAST) == []
    if "REPORT_SCREENSHOTS" in os.environ:
        browser.screenshot(Path(os.environ["REPORT_SCREENSHOTS"]) / f"report-{width}-{scheme}.png")


@pytest.mark.parametrize("width", WIDTHS)
def test_empty_page_reads_well(browser, folder, width):
    browser.open(folder / "empty.html", width)
    assert overflow(browser) <= 0
    assert browser.evaluate(f"{VISIBLE} visible.length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_comparison_reads_well(browser, folder, width, scheme):
    browser.open(folder / "both.html", width, scheme)
    assert overflow(browser) <= 0
    assert browser.evaluate(f"{VISIBLE} visible.length") == 2
    assert browser.evaluate(TEXT_FAULTS) == []
    assert browser.evaluate(LOW_CONTRAST) == []
    if "REPORT_SCREENSHOTS" in os.environ:
        browser.screenshot(Path(os.environ["REPORT_SCREENSHOTS"]) / f"compare-{width}-{scheme}.png")


@pytest.mark.parametrize("width", WIDTHS)
def test_hostile_names_stay_text(browser, folder, width):
    browser.open(folder / "poisoned.html", width)
    assert browser.evaluate("typeof window.hacked") == "undefined"
    assert browser.evaluate("document.scripts.length") == 1
    assert browser.evaluate("document.images.length") == 0
    assert browser.evaluate(f"document.querySelector('h1').textContent.includes({json.dumps(ATTACK)})")
    assert overflow(browser) <= 0


def test_theme_button_switches(browser, folder):
    browser.open(folder / "full.html", 1280, "light")
    background = "getComputedStyle(document.body).backgroundColor"
    light = browser.evaluate(background)
    browser.evaluate("document.getElementById('theme').click()")
    dark = browser.evaluate(background)
    browser.evaluate("document.getElementById('theme').click()")
    assert dark != light == browser.evaluate(background)


@pytest.mark.parametrize("width", WIDTHS)
def test_pointer_on_the_timeline_reads_a_step(browser, folder, width):
    browser.open(folder / "full.html", width)
    chart = "[...document.querySelectorAll('.timeline svg')].find(s => s.getClientRects().length)"
    browser.evaluate(f"{chart}.scrollIntoView({{block: 'center'}})")
    box = browser.evaluate(
        f"(({{left, top, width, height}}) => [left, top, width, height])({chart}.getBoundingClientRect())"
    )
    browser.move_pointer(box[0] + box[2] * 0.9, box[1] + box[3] / 2)
    readout = browser.evaluate("document.querySelector('.readout:not([hidden])')?.textContent")
    assert readout is not None and readout.startswith("step 2,") and "slowest" in readout
    assert overflow(browser) <= 0
    browser.move_pointer(1, 1)
    assert browser.evaluate("document.querySelector('.readout').hidden")


def test_copy_button_offers_the_command(browser, folder):
    browser.open(folder / "full.html", 1280)
    browser.evaluate("document.getElementById('copy').click()")
    browser.evaluate("new Promise(done => setTimeout(done, 100))")
    shown = browser.evaluate("document.getElementById('copy').textContent + getSelection().toString()")
    assert "Copied" in shown or "python train.py" in shown
