# SPDX-License-Identifier: Apache-2.0
"""The closing line of a test run counts the tests that ran, and never reports a broken run as passed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.lint import sources

PASSED = "<testcase name='a'/>"
FAILED = "<testcase name='b'><failure message='m'/></testcase>"
ERROR = "<testcase name='c'><error message='m'/></testcase>"
SKIPPED = "<testcase name='d'><skipped message='no browser'/></testcase>"


@pytest.fixture(scope="module")
def summarize() -> ModuleType:
    spec = importlib.util.spec_from_file_location("summarize", sources.ROOT / ".ci" / "summarize.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def suite(*cases: str) -> str:
    return f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>"


def entry(name: str, content: str = "") -> str:
    return f"<testcase name='{name}'>{content}</testcase>"


def write(build: Path, codes: dict[str, int], **files: str) -> Path:
    folder = build / "test-results"
    (folder / "gtest").mkdir(parents=True)
    for name, text in files.items():
        path = folder / ("gtest" if name.endswith("_test") else ".") / f"{name}.xml"
        path.write_text(text)
    (folder / "exit-codes.json").write_text(json.dumps(codes))
    return build


def closing_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_all_suites_are_added_up(summarize: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        tmp_path,
        {"C++": 0, "lit": 0, "Python": 0},
        ctest=suite(entry("base_test"), entry("smoke")),
        base_test=suite(PASSED, PASSED),
        lit=suite(PASSED),
        pytest=suite(PASSED, SKIPPED),
    )
    assert summarize.summarize([tmp_path]) == 0
    assert closing_line(capsys) == "5 passed, 0 failed, 1 skipped"


def test_failures_and_errors_count(summarize: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        tmp_path,
        {"C++": 8, "lit": 1, "Python": 1},
        ctest=suite(entry("base_test", "<failure/>")),
        base_test=suite(PASSED, FAILED),
        lit=suite(FAILED),
        pytest=suite(FAILED, ERROR, PASSED),
    )
    assert summarize.summarize([tmp_path]) == 1
    assert closing_line(capsys) == "2 passed, 4 failed"


def test_several_build_folders_are_added_up(
    summarize: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builds = [tmp_path / "dev", tmp_path / "torch2.11"]
    write(builds[0], {"Python": 0}, pytest=suite(PASSED, PASSED))
    write(builds[1], {"Python": 1}, pytest=suite(PASSED, FAILED))
    assert summarize.summarize(builds) == 1
    assert closing_line(capsys) == "3 passed, 1 failed"


@pytest.mark.parametrize(
    ("codes", "files", "line"),
    [
        ({"C++": 8}, {"ctest": suite(entry("x_test", "<failure message='SEGFAULT'/>"))}, "0 passed, 1 failed"),
        (
            {"C++": 8},
            {"ctest": suite(entry("x_test", "<skipped message='Unable to find executable'/>"))},
            "0 passed, 1 failed",
        ),
        ({"Python": -11}, {"pytest": "<testsuites><testsui"}, "0 passed, 1 failed"),
        ({"Python": 2, "lit": 0}, {"lit": suite(PASSED)}, "1 passed, 1 failed"),
        ({}, {}, "0 passed, 0 failed"),
        ({"Python": 0}, {"pytest": suite(SKIPPED)}, "0 passed, 0 failed, 1 skipped"),
    ],
    ids=["crashed binary", "missing binary", "truncated results", "no results", "nothing ran", "all skipped"],
)
def test_a_broken_run_is_not_green(
    codes: dict[str, int],
    files: dict[str, str],
    line: str,
    summarize: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path, codes, **files)
    assert summarize.summarize([tmp_path]) == 1
    assert closing_line(capsys) == line


def test_a_failed_build_counts_as_one_failure(
    summarize: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert summarize.summarize([tmp_path], status=2) == 1
    assert closing_line(capsys) == "0 passed, 1 failed"
