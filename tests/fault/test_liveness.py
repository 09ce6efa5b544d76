# SPDX-License-Identifier: Apache-2.0
"""Ranks that die, freeze and come back: which rank is given up, why, and which error the others get."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from agspeed import native, netbed
from tests.fault.conftest import MakeNetbed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]

PROGRAMS = Path(__file__).parent / "liveness_programs.py"
SIZE = 4
PEER_TIMEOUT_S = 3.0
FAILED = re.compile(r"^failed: (.*)$", re.MULTILINE)
ENDED = "its process has ended"


class Training:
    """Ranks that run one of the programs, all connected."""

    def __init__(self, bed: netbed.Netbed, program: str) -> None:
        self._lines: list[tuple[int, str]] = []
        self.job = bed.start(
            [sys.executable, str(PROGRAMS), program],
            env={"AGSPEED_PEER_TIMEOUT_MS": str(int(PEER_TIMEOUT_S * 1000)), "OMP_NUM_THREADS": "1"},
            on_line=lambda host, line: self._lines.append((host, line)),
        )
        self.await_line("ready", range(SIZE), 120)

    def await_line(self, text: str, hosts: range | list[int], limit_s: float) -> None:
        """Waits until each of these hosts has printed a line that begins with the text."""
        deadline = time.monotonic() + limit_s
        while not set(hosts) <= {host for host, line in self._lines if line.startswith(text)}:
            assert time.monotonic() < deadline, f"no {text!r} from all of {list(hosts)}: {self._lines}"
            time.sleep(0.01)

    def failures(self, hosts: list[int]) -> list[str]:
        """Returns the message of each host's failure."""
        self.await_line("failed", hosts, PEER_TIMEOUT_S + 30)
        text = {host: "\n".join(line for at, line in self._lines if at == host) for host in hosts}
        matches = [FAILED.search(text[host]) for host in hosts]
        return [match[1] for match in matches if match]

    def log(self) -> str:
        return "\n".join(line for _, line in self._lines)


def assert_all_name(failures: list[str], rank: int, cause: str) -> None:
    """Asserts that all messages name this rank before other ranks, and this cause."""
    for message in failures:
        first = re.search(r"rank \d+", message)
        assert first and first[0] == f"rank {rank}" and f"rank {rank} is lost" in message, message
        assert cause in message, message


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_named_by_all_others(make_netbed: MakeNetbed, victim: int) -> None:
    """With rank 0 as the victim, torch's store dies, too."""
    training = Training(make_netbed(hosts=SIZE, rails=2), "sums_for_ever")
    training.job.kill(victim)
    failures = training.failures([host for host in range(SIZE) if host != victim])
    assert_all_name(failures, victim, ENDED)


def test_ranks_that_wait_for_others_learn_of_a_killed_rank(make_netbed: MakeNetbed) -> None:
    training = Training(make_netbed(hosts=SIZE), "chain")
    time.sleep(0.5)
    training.job.kill(SIZE - 1)
    failures = training.failures(list(range(SIZE - 1)))
    assert_all_name(failures, SIZE - 1, ENDED)
    assert "receive from rank 1" in failures[0]


def test_a_stopped_rank_is_warned_of_then_given_up(make_netbed: MakeNetbed) -> None:
    training = Training(make_netbed(hosts=SIZE, rails=2), "sums_for_ever")
    training.job.stop(2)
    failures = training.failures([0, 1, 3])
    assert_all_name(failures, 2, "its process has not answered over rail")
    silences = [int(silence) for message in failures for silence in re.findall(r"for (\d+) ms", message)]
    assert min(silences) >= 1000 * PEER_TIMEOUT_S, failures
    warning = re.search(
        r"rank \d: rank 2 has not answered over rail \d \(198.18.\d.\d to 198.18.\d.\d\).* for (\d+) ms", training.log()
    )
    assert warning and int(warning[1]) < min(silences), training.log()
    assert re.search(r"all_reduce\(\d+ x f32, sum\), operation \d+ of group '.*' needs it", training.log())

    training.job.resume(2)  # too late, so it must not wait for ever
    training.await_line("failed", [2], PEER_TIMEOUT_S + 20)
    training.job.wait(30)


def test_a_rank_stopped_for_a_moment_is_waited_for(make_netbed: MakeNetbed) -> None:
    training = Training(make_netbed(hosts=SIZE, rails=2), "sums")
    training.job.stop(1)
    time.sleep(PEER_TIMEOUT_S / 2)
    training.job.resume(1)
    training.job.wait(60, check=True)
    assert "rank 1 answers again after" in training.log()


def test_a_rank_that_computes_is_waited_for(make_netbed: MakeNetbed) -> None:
    """The rank computes for longer than the timeout and holds Python's GIL meanwhile."""
    training = Training(make_netbed(hosts=SIZE), "computing")
    training.job.wait(60, check=True)
    assert "has not answered" not in training.log()
