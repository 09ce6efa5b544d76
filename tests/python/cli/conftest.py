# SPDX-License-Identifier: Apache-2.0
"""Fixtures that run the command line inside this process and make a cache folder with content."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from agspeed import files
from agspeed.cli import cache_files, main
from agspeed.reporting import model
from tests.python.reporting import report_sample

KEY = {
    "graph": "9c1f",
    "shapes": [[64, 784]],
    "dtypes": ["f32"],
    "device": "cpu",
    "threads": 2,
    "isa": "avx512",
    "versions": {"agspeed": "0.1.0", "torch": "2.11.0"},
}
RECORD = {"arm": "native", "reason": "native is 1.43 times as fast as eager"}


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


def decision(graph: str = "9c1f", *, created: int = 1_767_225_600, used: int = 1_767_225_600) -> cache_files.Decision:
    key = json.dumps(KEY | {"graph": graph}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return cache_files.Decision(key, json.dumps(RECORD, separators=(",", ":")), created, used, 3)


def kernel(key: bytes, payload: bytes) -> tuple[str, bytes]:
    """A kernel file as the compiler writes it: name and content."""
    checksum = 0xCBF29CE484222325
    for byte in key + payload:
        checksum = (checksum ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    header = struct.pack("=8sIIQQQ", b"AGKERNEL", 1, 0, len(key), len(payload), checksum)
    return cache_files.kernel_name(key), header + key + payload


@pytest.fixture
def cache(tmp_path) -> Path:
    """A cache with two decisions and two kernels."""
    folder = tmp_path / "cache"
    cache_files.write_decisions(folder, [decision(), decision("77aa")])
    files.make_folder(folder / cache_files.KERNELS)
    for name, data in (kernel(b"key one", b"code" * 100), kernel(b"key two", b"more code" * 50)):
        files.write(folder / cache_files.KERNELS / name, data)
    return folder
