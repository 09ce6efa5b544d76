# SPDX-License-Identifier: Apache-2.0
"""Jobs that are calls: each rank gets the argument, and the launcher gets each rank's result."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agspeed.errors import UserError
from agspeed.launch import exchange, frames
from tests.python.launch.jobs import TIMEOUT_S, Job

_CALLER = """
import argparse, sys
from dataclasses import replace
from agspeed.launch import arguments, job
from agspeed.launch.exchange import Call
parser = argparse.ArgumentParser()
arguments.add_to(parser)
call = Call(bytes(17 << 20) + b"end")
status = job.run(replace(arguments.request_of(parser.parse_args(sys.argv[1:])), call=call))
print(status, [call.results[rank][-8:] for rank in sorted(call.results)], [len(each) for each in call.results.values()])
"""
_RANK = """
import os, subprocess, sys
from agspeed.launch.exchange import OfRank
own = OfRank()
argument = own.argument()
host = os.environ["HOROVOD_HOSTNAME"].encode()[:5]
assert len(argument) == (17 << 20) + 3 and argument == own.argument()
if sys.argv[1:] != ["silent"]:
    own.give(bytes(600_000) + host + argument[-3:])
assert "AGSPEED_EXCHANGE" not in os.environ
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Job(tmp_path) as job:
        yield job
        job.waits_for_nothing_left()


def call(job: Job, *options: str, words: tuple[str, ...] = ()) -> str:
    command = [sys.executable, "-c", _CALLER, "-H", "relay-0:1,relay-1:1", *options]
    done = subprocess.run(
        [*command, sys.executable, "-c", _RANK, *words],
        env=job.environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("options", [(), ("--min-np", "1", "--launcher-grace", "0")], ids=["fixed", "elastic"])
def test_each_rank_gets_the_argument_and_its_result_comes_back(job: Job, options: tuple[str, ...]) -> None:
    assert call(job, "-np", "2", *options) == "0 [b'relayend', b'relayend'] [600008, 600008]\n"


def test_a_rank_that_gives_nothing_has_an_empty_result(job: Job) -> None:
    assert call(job, "-np", "1", words=("silent",)) == "0 [b''] [0]\n"


def test_results_of_any_length_are_refused() -> None:
    found = exchange.Call(b"")
    found.add(0, False, b"ab")
    found.add(0, True, b"c")
    assert found.results == {0: b"abc"} and found.pieces() == [b""]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(frames.FrameError, match="more than 2 bytes"):
        patch.setattr(exchange, "_MOST_BYTES", 2)
        found.add(1, False, b"abc")


def test_a_process_that_is_no_rank_of_a_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGSPEED_EXCHANGE", "400,401")
    with pytest.raises(UserError, match="AGSPEED_EXCHANGE=400,401: this process is no rank of a call"):
        exchange.OfRank()
