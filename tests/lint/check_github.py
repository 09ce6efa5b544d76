# SPDX-License-Identifier: Apache-2.0
"""The files of `.github` are valid: GitHub ignores a wrong form without a message, and a wrong target fails late.

Workflows call targets of the Makefile only, so that contributors can run the same commands. PyYAML comes with MkDocs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.lint import sources

FOLDER = ".github/"
FORMS = [path for path in sources.tracked() if path.startswith(f"{FOLDER}ISSUE_TEMPLATE/") and "config" not in path]
WORKFLOWS = [path for path in sources.tracked() if path.startswith(f"{FOLDER}workflows/")]
RUNNER = "./.github/workflows/make.yml"
ATTRIBUTES = {
    "checkboxes": {"description", "label", "options"},
    "dropdown": {"default", "description", "label", "multiple", "options"},
    "input": {"description", "label", "placeholder", "value"},
    "markdown": {"value"},
    "textarea": {"description", "label", "placeholder", "render", "value"},
}
"""Kind of an element of a form -> its attributes."""


def load(path: str) -> dict[str, Any]:
    content = yaml.safe_load(sources.read(path))
    assert isinstance(content, dict), f"{path} holds no mapping"
    return content


def texts(value: Any) -> Iterator[str]:
    """Yields all strings of a YAML value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from texts(each)
    elif isinstance(value, str):
        yield value


def targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", sources.read("Makefile"), re.M))


def jobs() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = load(f"{FOLDER}workflows/ci.yml")["jobs"]
    return found


@pytest.mark.parametrize("path", [path for path in sources.tracked() if path.startswith(FOLDER)])
def test_every_make_target_exists(path: str) -> None:
    if path.endswith(".md"):
        named = re.findall(r"`make ([\w-]+)", sources.read(path))
    else:
        pattern = r"(?:^|[`;&\s])make ([\w-]+)" if path in WORKFLOWS else r"`make ([\w-]+)"
        named = [target for text in texts(load(path)) for target in re.findall(pattern, text)]
    assert set(named) <= targets(), f"{path} names {sorted(set(named) - targets())}"


def test_jobs_call_make_alone() -> None:
    assert jobs()
    for name, job in jobs().items():
        assert job["uses"] == RUNNER, f"{name} calls {job['uses']}"
        assert re.fullmatch(r"make [\w-]+( TORCH=\$\{\{ matrix\.torch \}\})?", job["with"]["run"]), name
        assert set(job["with"]) <= set(inputs()), name


def test_the_runner_runs_the_command_of_the_job() -> None:
    steps = load(RUNNER.removeprefix("./"))["jobs"]["make"]["steps"]
    assert [step["run"] for step in steps if step.get("name") == "Run make"] == ["${{ inputs.run }}"]
    used = set(re.findall(r"inputs\.(\w+)", sources.read(RUNNER.removeprefix("./"))))
    assert used == set(inputs())


def inputs() -> dict[str, Any]:
    workflow: dict[Any, Any] = load(RUNNER.removeprefix("./"))
    found: dict[str, Any] = workflow[True]["workflow_call"]["inputs"]  # YAML reads the key "on" as True
    return found


def test_the_main_paths_are_tested_under_every_torch() -> None:
    rows = sources.read(".ci/torch-versions.txt").splitlines()
    assert jobs()["smoke"]["strategy"]["matrix"]["torch"] == [row.split()[0] for row in rows if row[:1] != "#"]


@pytest.mark.parametrize("path", FORMS)
def test_a_form_is_valid(path: str) -> None:
    form = load(path)
    assert (
        {"body", "description", "name"} <= set(form) <= {"assignees", "body", "description", "labels", "name", "title"}
    )
    names = []
    for element in form["body"]:
        assert set(element) <= {"attributes", "id", "type", "validations"}
        assert set(element["attributes"]) <= ATTRIBUTES[element["type"]], element
        if element["type"] == "markdown":
            assert element["attributes"]["value"].strip()
            continue
        names.append(element["id"])
        assert re.fullmatch(r"[\w-]+", element["id"]) and element["attributes"]["label"], element
        assert all(isinstance(option, str) for option in element["attributes"].get("options", ())), element
    assert len(names) == len(set(names)) and names, f"{path}: {names}"


@pytest.mark.parametrize("path", FORMS)
def test_a_form_asks_for_the_file_of_the_doctor(path: str) -> None:
    [asked] = [element for element in load(path)["body"] if element.get("id") == "doctor"]
    assert "--report report.md`" in asked["attributes"]["description"] and asked["validations"]["required"] is True
    assert "render" not in asked["attributes"], "GitHub takes no files in a field with `render`"


def test_forms_have_names_of_their_own() -> None:
    names = [load(path)["name"] for path in FORMS]
    assert len(names) == len(set(names)) == 4
