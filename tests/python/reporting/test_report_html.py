# SPDX-License-Identifier: Apache-2.0
"""The page as text: one file, no requests, every text escaped. test_report_in_browser.py tests it rendered."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re

import pytest

from agspeed.reporting import model
from agspeed.reporting.html import compare_page
from agspeed.reporting.html.glossary import TERMS
from agspeed.reporting.html.page import render
from tests.python.reporting import report_sample
from tests.python.support.poisoned_report import CHARTS, poisoned_report


class Tags(html.parser.HTMLParser):
    """Collects start tags with attributes, and checks that tags are nested correctly."""

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


class Texts(html.parser.HTMLParser):
    """Collects the text inside each element that a predicate selects, nested elements included."""

    def __init__(self, page: str, is_wanted) -> None:
        super().__init__()
        self.found: list[str] = []
        self._is_wanted = is_wanted
        self._depth = 0
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if self._depth or self._is_wanted(tag, dict(attrs)):
            if not self._depth:
                self.found.append("")
            self._depth += tag not in Tags._VOID

    def handle_endtag(self, tag):
        self._depth -= bool(self._depth)

    def handle_data(self, data):
        if self._depth:
            self.found[-1] += data


def chart(page: str, name: str) -> str:
    """Returns all texts of the widest drawing of a chart."""
    return Texts(page, lambda tag, attributes: attributes.get("data-chart") == name).found[0]


def folds(page: str) -> list[str]:
    """Returns the text of each outermost fold."""
    return Texts(page, lambda tag, attributes: tag == "details").found


def test_the_timeline_shows_how_long_training_stood_still_for_what(page):
    sample = report_sample.report()["timeline"]
    assert [pause["kind"] for pause in sample["pauses"]] == list(report_sample.PAUSES)
    drawn = chart(page, "Step time over the run")
    for kind, seconds in report_sample.PAUSES.items():
        assert f"stood still: {kind}" in drawn and f"{seconds:.1f} s" in drawn
    assert "Training stood still for 19.7 s: compile 14.2 s, gate 3.1 s, capture 2.4 s." in page
    assert "seconds since optimize was called" in drawn
    assert page.count("hatched") > 3 * len(sample["pauses"])


def test_steps_are_shown_on_demand(page):
    (fold,) = [text for text in folds(page) if "The same by training step" in text]
    assert "training step" in fold and "seconds since" not in fold


def test_eager_is_the_line_and_no_row_of_the_chart(page):
    drawn = chart(page, "Candidates")
    assert "1× = eager" in drawn
    assert "always available" not in page and "what all others are compared with" in page
    (svg, *_) = re.findall(r'data-chart="Candidates".*?</svg>', page)
    labels = Texts(svg, lambda tag, attributes: tag == "text").found
    assert "graph-eager" in labels and "eager" not in labels


def test_combined_plans_are_named_by_what_differs_and_folded(page):
    (fold,) = [text for text in folds(page) if "1 combined plan" in text]
    assert "native, region 0: inductor" in fold
    assert "native, region 0: inductor" not in chart(page, "Candidates") and "+r0" not in page


def test_a_chosen_combined_plan_stands_with_the_others():
    data = report_sample.report()
    data["plans"] = [plan | {"state": "slower"} for plan in data["plans"]]
    data["plans"][-1]["state"] = "chosen"
    page = render(data)
    assert not any("combined plan" in text and "native, region 0" in text for text in folds(page))
    assert "native, region 0: inductor" in chart(page, "Candidates")


def test_regions_are_distinguished_by_shapes_and_show_their_code_behind_folds(page):
    fold = next(text for text in folds(page) if "CharGPT.forward" in text and "Captured graph" in text)
    for part in ("i64[64, 128]", "Source", "return self.head(self.blocks(x))", "class GraphModule", "void kernel"):
        assert part in fold
    assert fold.index("i64[64, 128]") < fold.index("operators")


def test_the_gates_limit_stands_beside_the_error(page):
    cells = Texts(page, lambda tag, attributes: attributes.get("data-label") == "Error").found
    assert any("3.6e-02" in cell and "limit 3.4e-05" in cell for cell in cells), cells
    assert "1.6e-03, allowed 1.3e-06, eager 3.8e-07, worst logits" in chart(page, "Errors against fp64")


def test_every_word_of_the_glossary_is_in_the_page_and_in_one_line(page):
    glossary = folds(page)[-1]
    for term, meaning in TERMS.items():
        assert term in glossary and meaning in glossary and "\n" not in meaning and len(meaning) < 120
    titles = {attributes.get("title") for tag, attributes in Tags(page).found if tag == "th"}
    assert {TERMS["plan"], TERMS["speed"], TERMS["peak"], TERMS["error"]} <= titles


def test_every_figure_and_table_has_a_line_of_help(page):
    helped = Texts(page, lambda tag, attributes: "help" in (attributes.get("class") or "") or tag == "figcaption").found
    sections = Texts(page, lambda tag, attributes: tag in ("section", "figure")).found
    tables = [tag for tag, _ in Tags(page).found if tag == "table"]
    assert len(helped) >= len(tables) - 1 + len(CHARTS) - 1, (len(helped), len(tables), len(sections))
    assert all(text.strip() for text in helped)


def test_a_report_of_before_the_pauses_can_still_be_shown(tmp_path):
    data = report_sample.report()
    for name in ("at_s", "pauses"):
        del data["timeline"][name]
    for region in data["regions"]:
        for name in ("source", "graph", "generated"):
            del region[name]
    for plan in data["plans"]:
        for group in ("forward", "gradients"):
            if plan["gate"] is not None:
                del plan["gate"][group]["allowed_max"], plan["gate"][group]["allowed_rms"]
    (tmp_path / "old.json").write_text(json.dumps(data))
    page = render(model.load(tmp_path / "old.json").to_dict())
    assert "Training never stood still." in page and "limit 3.4e-05" not in page


def test_bytes_that_no_rail_sent_are_listed_beside_the_rails():
    report = report_sample.report()
    rows = Texts(render(report), lambda tag, _: tag == "tr").found
    assert any("shared memory" in row and "2.0 GiB" in row for row in rows)
    assert any("saved by lossless coding" in row and "1.0 GiB" in row for row in rows)
    for name in ("shared_memory_bytes_sent", "bytes_before_coding", "bytes_after_coding"):
        report["communication"][name] = 0
    page = render(report)
    assert "shared memory" not in page and "saved by lossless coding" not in page


def test_two_runs_are_compared_on_one_page():
    before, after = report_sample.report(), report_sample.report()
    after["decision"]["chosen"] = "inductor"
    after["header"]["threads"]["intra_op"] = 4
    page = compare_page.render(before, after)
    changed = Texts(page, lambda tag, attributes: attributes.get("class") == "changed").found
    assert any("chosen" in row and "native" in row and "inductor" in row for row in changed)
    assert any("threads intra_op" in row for row in changed)
    assert "://" not in page and not any(tag == "script" for tag, _ in Tags(page).found)
    assert sum(attributes.get("data-chart") == "Step time over the run" for _, attributes in Tags(page).found) == 4


def test_names_in_a_comparison_are_escaped():
    page = compare_page.render(poisoned_report(), poisoned_report())
    clean = {tag for tag, _ in Tags(compare_page.render(report_sample.report(), report_sample.report())).found}
    assert {tag for tag, _ in Tags(page).found} <= clean
