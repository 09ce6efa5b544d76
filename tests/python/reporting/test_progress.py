# SPDX-License-Identifier: Apache-2.0
"""The progress that a user sees during tuning: on a terminal of any size, in a pipe, in a log."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from agspeed.reporting import progress

ROOT = Path(__file__).resolve().parents[3]
_THREE_PHASES = """
import agspeed.reporting.progress as progress
progress._MIN_INTERVAL_S = 0.0
shown = progress.Progress()
shown.begin("GPT2", 100.4)
for share, phase in [(0.1, "compiling native, 1 of 3"), (0.5, "timing native, 1 of 3"), (0.4, "compiling inductor")]:
    shown.update(share, phase, 40)
    shown.update(share + 0.05, phase, 30)
shown.end("GPT2: native, 1.20 times eager's speed")
"""
_LAST = "agspeed: GPT2: native, 1.20 times eager's speed"


def _shares(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"(\d+)%", text)]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "python"), "TERM": "xterm"}


@pytest.mark.parametrize(("rows", "columns"), [(0, 0), (24, 80), (24, 20)])
def test_a_terminal_shows_one_line_that_fits_and_never_falls(rows: int, columns: int) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    command = [sys.executable, "-c", _THREE_PHASES]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=_environment())
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 4096):
            seen += chunk
    except OSError:
        pass  # the other end is closed
    assert process.wait(timeout=300) == 0
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", seen.decode())
    first, *bars, last = [line for line in re.split(r"[\r\n]+", text) if line]
    assert first == "agspeed: GPT2 is tuned on its first steps, about 2 min; Ctrl-C is safe" and last == _LAST
    assert bars and all(len(bar) < (columns or 80) or columns < 40 for bar in bars), bars
    assert _shares(text) == sorted(_shares(text))


def test_a_pipe_gets_one_line_a_phase() -> None:
    command = [sys.executable, "-c", _THREE_PHASES]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "agspeed: GPT2 is tuned on its first steps, about 2 min; Ctrl-C is safe",
        "agspeed:  10%  compiling native, 1 of 3, about 40 s left",
        "agspeed:  50%  timing native, 1 of 3, about 40 s left",
        "agspeed:  55%  compiling inductor, about 40 s left",
        _LAST,
    ]


def test_an_application_that_logs_gets_records_and_nothing_on_its_streams(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="agspeed")
    stream = io.StringIO()
    shown = progress.Progress(stream=stream)
    shown.update(0.5, "timing native", 40)
    shown.end("decided")
    assert [record.getMessage() for record in caplog.records] == [
        "agspeed:  50%  timing native, about 40 s left",
        "agspeed: decided",
    ]
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("enabled", "rank"), [(False, "0"), (True, "1")])
def test_nothing_is_shown_when_switched_off_or_not_rank_0(
    monkeypatch: pytest.MonkeyPatch, enabled: bool, rank: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    stream = io.StringIO()
    shown = progress.Progress(enabled, stream)
    shown.begin("GPT2", 10)
    shown.update(0.1, "timing native", 10)
    shown.end("decided")
    assert stream.getvalue() == ""


def test_a_stream_that_closes_is_left_alone() -> None:
    stream = io.StringIO()
    shown = progress.Progress(stream=stream)
    stream.close()
    shown.update(0.1, "timing native", 10)
    shown.end("decided")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (40.4, "40 s"), (99, "99 s"), (200, "3 min"), (9000, "2 h")]
)
def test_durations_are_as_exact_as_a_guess(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text
