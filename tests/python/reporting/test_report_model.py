# SPDX-License-Identifier: Apache-2.0
"""The report's document: valid contents, refused contents, and storage."""

from __future__ import annotations

import copy
import json
import stat

import pytest
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator

from agspeed.errors import UserError
from agspeed.reporting import model, parts
from tests.python.reporting import report_sample, report_strategies


def test_schema_is_itself_valid_and_strict():
    Draft202012Validator.check_schema(model.schema())
    definitions = [model.schema(), *model.schema()["$defs"].values()]
    objects = [part for part in definitions if part.get("type") == "object"]
    assert len(objects) > 10
    for part in objects:
        assert part["additionalProperties"] is False
        assert part["required"] == list(part["properties"])


def test_empty_and_full_reports_are_valid():
    model.validate(model.empty_report())
    model.validate(report_sample.report())


@pytest.mark.slow
@given(report_strategies.reports())
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_any_report_of_the_schema_can_be_stored_and_shown(tmp_path_factory, data):
    report = model.Report(data)
    path = report.save(tmp_path_factory.getbasetemp() / "generated.json")
    assert model.load(path).to_dict() == data
    assert "What to do next" in str(report)
    page = report.save(path.with_suffix(".html")).read_text(encoding="utf-8")
    assert page.rstrip().endswith("</html>")
    assert page.count("<script>") == 1


@pytest.mark.parametrize("name", list(model.empty_report()))
def test_every_section_is_required(name):
    data = report_sample.report()
    del data[name]
    with pytest.raises(UserError):
        model.validate(data)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: data.update(extra=1), "not valid at $: Additional properties"),
        (lambda data: data.update(schema_version=2), "has schema version 2"),
        (lambda data: data.update(kind="other"), "not an agspeed report"),
        (lambda data: data["plans"][0].update(state="best"), "not valid at $.plans[0].state"),
        (lambda data: data["header"].update(parameters=-1), "not valid at $.header.parameters"),
        (lambda data: data["cost"].update(foreground_s=float("nan")), "a value that JSON cannot"),
        (lambda data: data["header"]["settings"].update(mode={"value": object(), "origin": ""}), "that JSON cannot"),
        (lambda data: data["timeline"]["ms"].pop(), "its columns differ in length"),
    ],
)
def test_wrong_document_is_refused_with_its_place(change, expected):
    data = report_sample.report()
    change(data)
    with pytest.raises(UserError) as raised:
        model.validate(data)
    assert expected in str(raised.value)


def test_report_keeps_and_hands_out_copies():
    data = report_sample.report()
    report = model.Report(data)
    before = copy.deepcopy(data)
    data["plans"].clear()
    report.to_dict()["plans"].clear()
    assert report.to_dict() == before


def test_saved_report_is_private_and_whole(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("old")
    assert model.Report(report_sample.report()).save(path) == path
    assert json.loads(path.read_text()) == report_sample.report()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_path_that_cannot_be_written_is_one_sentence_and_changes_nothing(tmp_path):
    report = model.Report(report_sample.report())
    with pytest.raises(UserError, match="ends in neither"):
        report.save(tmp_path / "report.txt")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "report.json", tmp_path / "folder.json"):
        with pytest.raises(UserError, match="cannot be written to"):
            report.save(path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"kind": "agspeed.report"}', "NaN", "[" * 100_000])
def test_file_that_is_no_report_is_refused(tmp_path, text):
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        model.load(path)
    assert "report.json" in str(raised.value)


def test_a_file_of_this_version_without_bytes_through_shared_memory_is_read(tmp_path):
    data = report_sample.report()
    del data["communication"]["shared_memory_bytes_sent"]
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data))
    assert model.load(path).to_dict()["communication"]["shared_memory_bytes_sent"] == 0


def test_a_file_of_this_version_without_what_was_added_later_is_read(tmp_path):
    data = report_sample.report()
    for name in ("saved_s", "left_s", "next_run"):
        del data["cost"][name]
    del data["decision"]["resumed_pairs"]
    for plan in [*data["plans"], *data["regions"][0]["candidates"]]:
        del plan["cold"]
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data))
    assert model.load(path).to_dict()["cost"]["next_run"] == "same"


@pytest.mark.parametrize("chosen", [None, "fused"])
def test_a_file_of_this_version_with_one_optimizer_is_read(tmp_path, chosen):
    data = model.empty_report("mlp")
    expected = [parts.optimizer("AdamW", chosen=chosen, why="it is faster")] if chosen else []
    del data["optimizers"]
    data["optimizer"] = expected[0] if chosen else None
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    assert model.load(path).to_dict()["optimizers"] == expected
    assert ("AdamW runs torch's fused step, because it is faster." in " ".join(str(model.load(path)).split())) == bool(
        chosen
    )


def test_a_file_of_this_version_without_sections_for_several_ranks_is_read(tmp_path):
    data = model.empty_report("mlp")
    del data["communication"], data["stragglers"]
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    read = model.load(path).to_dict()
    assert read["communication"] is read["stragglers"] is None


def test_a_file_of_this_version_whose_stragglers_are_single_ranks_is_read(tmp_path):
    data = model.empty_report("mlp")
    expected = data["stragglers"] = report_sample.stragglers()
    written = json.loads(json.dumps(data))
    for finding in [*written["stragglers"]["lasting"], *written["stragglers"]["ended"]]:
        del finding["num_ranks"], finding["is_starved"]
    path = tmp_path / "report.json"
    path.write_text(json.dumps(written), encoding="utf-8")
    assert model.load(path).to_dict()["stragglers"] == expected


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        model.load(tmp_path / "none.json")


def test_errors_that_json_cannot_hold_become_words():
    assert [parts.error(value) for value in (float("nan"), float("inf"), 0.5)] == ["nan", "inf", 0.5]
