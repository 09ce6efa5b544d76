# SPDX-License-Identifier: Apache-2.0
"""The command line and reports on output streams of all kinds: readers that leave, closed streams, full disks and small
character sets. Runs without torch, so that each command is fast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import agspeed
from tests.python.support.pairs import pairs
from tests.python.support.without_torch import BLOCKER

Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`run(command, **variables)` runs a shell command in which $AGSPEED is the command line."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    path = os.pathsep.join([str(tmp_path), str(Path(agspeed.__file__).parents[1])])

    def run(command: str, stdout: int = subprocess.PIPE, **variables: str) -> subprocess.CompletedProcess[bytes]:
        environment = {**os.environ, "PYTHONPATH": path, "AGSPEED": f"{sys.executable} -m agspeed", **variables}
        words = ["sh", "-c", command]
        return subprocess.run(
            words, stdout=stdout, stderr=subprocess.PIPE, env=environment, cwd=tmp_path, check=False, timeout=120
        )

    return run


@pytest.fixture
def commands(report_file: Path, cache: Path) -> dict[str, str]:
    """Commands of every kind that prints, by name."""
    return {
        "cache": f"cache --cache-dir {cache} ls",
        "compare": f"report compare {report_file} {report_file}",
        "config": "config --explain",
        "doctor": "doctor",
        "help": "--help",
        "json": f"report show --json {report_file}",
        "run": "run -np 1 echo é",
        "show": f"report show {report_file}",
        "wrong": "cache prune --days nan",
    }


STATUS = {
    "cache": 0,
    "compare": 0,
    "config": 0,
    "doctor": 1,  # fails, because there is no torch
    "help": 0,
    "json": 0,
    "run": 0,
    "show": 0,
    "wrong": 2,
}


@pytest.mark.parametrize("name", STATUS)
def test_a_reader_that_leaves_is_no_error(run: Run, commands: dict[str, str], name: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = run(f"$AGSPEED {commands[name]}", stdout=writer)
    os.close(writer)
    is_wrong = name == "wrong"
    assert (done.returncode, done.stderr.count(b"\n")) == (2 if is_wrong else 0, int(is_wrong)), done.stderr.decode()


@pytest.mark.parametrize(("name", "closed"), pairs(list(STATUS), [">&-", "<&- 2>&-"]))
def test_a_closed_stream_changes_nothing_but_what_is_seen(
    run: Run, commands: dict[str, str], name: str, closed: str
) -> None:
    done = run(f"$AGSPEED {commands[name]} {closed}")
    assert (done.returncode, b"Traceback" in done.stderr) == (STATUS[name], False), done.stderr.decode()
    assert (done.stdout != b"") == (closed != ">&-" and name != "wrong")


@pytest.mark.parametrize(("name", "encoding"), pairs(list(STATUS), ["ascii", "latin-1"]))
def test_every_character_set_is_good_enough(run: Run, commands: dict[str, str], name: str, encoding: str) -> None:
    done = run(f"$AGSPEED {commands[name]}", PYTHONIOENCODING=encoding)
    assert (done.returncode, b"Traceback" in done.stderr) == (STATUS[name], False), done.stderr.decode()
    assert (done.stdout != b"") == (name != "wrong")


def test_in_ascii_marks_and_signs_stay_readable(run: Run, report_file: Path) -> None:
    done = run(f"$AGSPEED doctor; $AGSPEED report show {report_file}", PYTHONIOENCODING="ascii")
    assert b"+ python" in done.stdout and b"1.29-1.33x" in done.stdout
    assert b"\\u" not in done.stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_report_can_be_printed_in_every_character_set(run: Run, report_file: Path, encoding: str) -> None:
    script = f"from agspeed.reporting import model; print(model.load({str(report_file)!r}))"
    done = run(f'{sys.executable} -c "{script}"', PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr.decode()
    assert "1.31×" in done.stdout.decode(encoding) or (encoding == "ascii" and b"1.31x" in done.stdout)


def test_a_full_disk_is_one_sentence(run: Run, commands: dict[str, str]) -> None:
    for name in ("config", "json"):
        done = run(f"$AGSPEED {commands[name]} >/dev/full")
        assert (done.returncode, done.stderr) == (1, b"agspeed: [Errno 28] No space left on device\n"), name


def test_an_error_shows_no_character_that_steers_a_terminal(run: Run, tmp_path: Path, report_file: Path) -> None:
    document = json.loads(report_file.read_text())
    document["cost"]["\x1b[2J\u202egone"] = 1
    hostile = tmp_path / "hostile\x1b[2J.json"
    hostile.write_text(json.dumps(document))
    done = run(f"$AGSPEED report show {tmp_path}/hostile*.json")
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1
    assert b"\x1b" not in done.stderr and "\u202e" not in done.stderr.decode()
