# SPDX-License-Identifier: Apache-2.0
"""Fixtures that run the command line inside this process and make a cache folder with content."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from agspeed import files
from agspeed.cli import cache_files, main
from agspeed.reporting import model
from agspeed.tuning import decision_table
from tests.python.reporting import report_sample
from tests.python.support.cache_content import decision, kernel


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def agspeed(capsys) -> Callable[..., Result]:
    """`agspeed("cache", "ls")` runs that command line and returns its exit code and output."""

    def run(*arguments: object) -> Result:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ended:  # argparse: usage errors and --help
            code = int(ended.code or 0)
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def report_file(tmp_path) -> Path:
    return model.Report(report_sample.report()).save(tmp_path / "report.json")


@pytest.fixture
def cache(tmp_path) -> Path:
    """A cache with two decisions and two kernels."""
    folder = tmp_path / "cache"
    decision_table.write_decisions(folder, [decision(), decision("77aa")])
    files.make_folder(folder / cache_files.KERNELS)
    for name, data in (kernel(b"key one", b"code" * 100), kernel(b"key two", b"more code" * 50)):
        files.write(folder / cache_files.KERNELS / name, data)
    return folder
