# SPDX-License-Identifier: Apache-2.0
"""The page as text: one file, nothing fetched, every text escaped. test_report_in_browser.py looks at it rendered."""

from __future__ import annotations

import base64
import copy
import hashlib
import html.parser
import re

import pytest

from agspeed.reporting import model
from agspeed.reporting.html.page import render
from tests.python.reporting import report_sample

CHARTS = ("Step time over the run", "Candidates", "Errors against fp64", "Where time goes", "Memory", "Break-even")
ATTACK = "\"'></title></style></svg></script><script>window.hacked = true</script><img src=x onerror=a()>{{ 7 * 7 }}"


class Tags(html.parser.HTMLParser):
    """Collects start tags with attributes, and checks that tags nest."""

    _VOID = ("meta", "link", "br", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self._VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag


def poisoned(value):
    """The same document with every free text replaced by an attack."""
    if isinstance(value, dict):
        return {key: poisoned(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [poisoned(inner) for inner in value]
    return value + ATTACK if isinstance(value, str) else value


def poisoned_report():
    data = report_sample.report()
    attacked = poisoned(copy.deepcopy(data))
    kept = ("kind", "schema_version", "timeline", "kill_switch")
    attacked |= {name: data[name] for name in kept}
    for plan, original in zip(attacked["plans"], data["plans"], strict=True):
        plan["state"] = original["state"]
        plan["gate"] = original["gate"]
    attacked["regions"], attacked["cost"] = data["regions"], data["cost"]
    attacked["status"]["state"] = "tuned"
    attacked["decision"]["source"] = "measured"
    for share, original in zip(attacked["time_shares"], data["time_shares"], strict=True):
        share["kind"] = original["kind"]
    attacked["regions"][0]["location"]["file"] += ATTACK
    attacked["timeline"]["phases"][2]["candidate"] += ATTACK
    attacked["plans"][1]["gate"]["forward"]["worst"] += ATTACK
    attacked["header"]["settings"][ATTACK] = {"value": ATTACK, "origin": ATTACK}
    attacked["header"]["versions"][ATTACK] = ATTACK
    model.validate(attacked)
    return attacked


@pytest.fixture(scope="module")
def page() -> str:
    return render(report_sample.report())


def test_page_is_well_formed_and_has_every_chart(page):
    charts = [attributes["data-chart"] for tag, attributes in Tags(page).found if tag == "svg"]
    assert set(charts) == set(CHARTS)
    assert page.lower().startswith("\n<!doctype html>") or page.lower().startswith("<!doctype html>")


def test_page_asks_for_nothing_from_outside(page):
    for tag, attributes in Tags(page).found:
        for name in ("src", "href", "action", "srcset", "data"):
            assert attributes.get(name, "data:").startswith("data:"), (tag, attributes)
    assert "@import" not in page and "url(" not in page
    assert "http://" not in page and "https://" not in page


def test_policy_allows_exactly_the_pages_own_script(page):
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page


def test_every_text_is_escaped():
    page = render(poisoned_report())
    clean = {tag for tag, _ in Tags(render(report_sample.report())).found}
    found = Tags(page).found
    assert {tag for tag, _ in found} <= clean
    assert sum(tag == "script" for tag, _ in found) == 1
    assert not any(name.startswith("on") for _, attributes in found for name in attributes)
    assert "{{ 7 * 7 }}" in page and "window.hacked = true" in page


def test_empty_report_says_what_is_missing_instead_of_drawing(capsys):
    page = render(model.empty_report("fresh"))
    assert not any(tag == "svg" for tag, _ in Tags(page).found)
    for sentence in ("No step has been timed yet.", "The numerics gate has not run.", "No candidate has been timed."):
        assert sentence in page


def test_page_warns_that_it_contains_code_and_says_how_to_switch_off(page):
    assert "Read it before you share it." in page
    assert "AGSPEED_DISABLE=1" in page
    assert "python train.py --batch-size 64 --steps 3000" in page


def test_drawings_describe_themselves(page):
    drawings = [attributes for tag, attributes in Tags(page).found if tag == "svg"]
    for attributes in drawings:
        assert attributes["role"] == "img"
        assert len(attributes["aria-label"]) > len(attributes["data-chart"]) + 5


def test_a_notebook_shows_the_page_in_a_frame_of_its_own() -> None:
    shown = model.Report(report_sample.report())._repr_html_()
    ((tag, attributes),) = Tags(shown).found
    assert tag == "iframe" and attributes["srcdoc"] == render(report_sample.report())
