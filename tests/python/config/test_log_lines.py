# SPDX-License-Identifier: Apache-2.0
"""The lines that the logger writes: their text, their stream, and how often they appear."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from agspeed import log


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    log._seen.clear()
    yield
    log._seen.clear()


def test_a_cause_is_warned_about_once(caplog):
    assert log.warn_once(("fallback", 3), "region 3 fell back to eager: 100% odd")
    assert not log.warn_once(("fallback", 3), "region 3 fell back to eager: again")
    assert log.warn_once(("fallback", 4), "region 4 fell back to eager")
    assert [record.getMessage() for record in caplog.records] == [
        "agspeed: region 3 fell back to eager: 100% odd",
        "agspeed: region 4 fell back to eager",
    ]


def test_lines_of_a_rank_say_so(caplog, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    log.logger.warning("lost %d pairs", 2)
    assert caplog.records[0].getMessage().startswith("agspeed [rank 3/")
    assert caplog.records[0].getMessage().endswith("]: lost 2 pairs")


def test_importing_installs_no_handler():
    assert log.logger.handlers == [] or log.logger.handlers == [log._handler]
    assert log.LEVELS["warn"] == logging.WARNING


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stderr


def test_warnings_reach_stderr_and_information_only_on_request():
    script = "from agspeed import log; log.logger.info('quiet'); log.logger.warning('loud')"
    assert run(script) == "agspeed: loud\n"
    asked = "from agspeed import log; log.set_level('info'); log.set_level('info'); log.logger.info('quiet')"
    assert run(asked) == "agspeed: quiet\n"


def test_an_applications_own_handlers_are_used():
    script = (
        "import logging, sys; logging.basicConfig(format='APP %(message)s'); from agspeed import log; "
        "log.set_level('trace'); log.logger.log(log.TRACE, 'detail')"
    )
    assert run(script) == "APP agspeed: detail\n"
