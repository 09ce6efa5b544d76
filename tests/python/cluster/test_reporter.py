# SPDX-License-Identifier: Apache-2.0
"""The thread that reports: only the newest text waits, the caller never does, and failures are quiet."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator

import pytest

from agspeed import log
from agspeed.cluster.reporter import Reporter

_LONG_S = 3600.0
_LIMIT_S = 60.0


class Line:
    """A network on which the test says how each sending ends."""

    def __init__(self) -> None:
        self.begun: queue.Queue[bytes] = queue.Queue()
        self.ends: queue.Queue[Exception | None] = queue.Queue()

    def send(self, text: bytes) -> None:
        self.begun.put(text)
        error = self.ends.get()
        if error is not None:
            raise error


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture(autouse=True)
def unwarned(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    monkeypatch.setattr(log, "_seen", set())
    caplog.set_level(logging.WARNING, logger="agspeed")
    yield


def test_only_the_newest_text_is_sent(line: Line) -> None:
    """`put` returns although the network does not answer, however often it is called."""
    reporter = Reporter(line.send, "it failed", interval_s=0)
    reporter.put(b"first")
    assert line.begun.get(timeout=_LIMIT_S) == b"first"
    for number in range(1000):
        reporter.put(f"{number}".encode())
    line.ends.put(None)
    assert line.begun.get(timeout=_LIMIT_S) == b"999"
    line.ends.put(None)
    reporter.finish(_LIMIT_S)
    assert line.begun.empty()


def test_the_interval_keeps_texts_back(line: Line) -> None:
    reporter = Reporter(line.send, "it failed", interval_s=_LONG_S)
    reporter.put(b"first")
    line.begun.get(timeout=_LIMIT_S)
    line.ends.put(None)
    reporter.put(b"second")
    with pytest.raises(queue.Empty):
        line.begun.get(timeout=0.1)


def test_the_end_sends_the_text_that_waits(line: Line) -> None:
    reporter = Reporter(line.send, "it failed", interval_s=_LONG_S)
    reporter.put(b"first")
    line.begun.get(timeout=_LIMIT_S)
    reporter.put(b"last")
    line.ends.put(None)
    line.ends.put(None)
    reporter.finish(_LIMIT_S)
    assert line.begun.get(timeout=_LIMIT_S) == b"last"


def test_failures_are_one_warning_and_a_pause(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    reporter = Reporter(line.send, "it was not reported", interval_s=_LONG_S, pause_s=0.01)
    errors = [TimeoutError("timed out"), ConnectionRefusedError(111, "Connection refused"), ValueError(), None]
    for number, error in enumerate(errors):
        reporter.put(f"{number}".encode())
        assert line.begun.get(timeout=_LIMIT_S) == f"{number}".encode()
        line.ends.put(error)
    reporter.finish(_LIMIT_S)
    [record] = caplog.records
    assert record.getMessage().startswith("agspeed: it was not reported: timed out. Training goes on.")


def test_a_pause_after_a_failure_keeps_texts_back(line: Line) -> None:
    reporter = Reporter(line.send, "it failed", interval_s=0, pause_s=_LONG_S)
    reporter.put(b"first")
    line.begun.get(timeout=_LIMIT_S)
    line.ends.put(OSError(5, "Input/output error"))
    reporter.put(b"second")
    with pytest.raises(queue.Empty):
        line.begun.get(timeout=0.1)


def test_the_end_after_a_failure_sends_nothing(line: Line) -> None:
    reporter = Reporter(line.send, "it failed", pause_s=_LONG_S)
    reporter.put(b"first")
    line.begun.get(timeout=_LIMIT_S)
    reporter.put(b"last")
    line.ends.put(OSError(5, "Input/output error"))
    reporter.finish(_LIMIT_S)
    assert line.begun.empty()


def test_the_end_does_not_wait_for_a_network_that_hangs(line: Line) -> None:
    reporter = Reporter(line.send, "it failed")
    reporter.put(b"first")
    line.begun.get(timeout=_LIMIT_S)
    reporter.finish(0.01)
    line.ends.put(None)


def test_no_thread_runs_before_the_first_text() -> None:
    before = threading.enumerate()
    Reporter(lambda text: None, "it failed").finish(_LIMIT_S)
    assert threading.enumerate() == before
