# SPDX-License-Identifier: Apache-2.0
"""Random faults, one after another, in one elastic job. Some hit it while it still deals with the fault before."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from agspeed import native
from benchmarks.elastic.job import Job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]
NUM_FAULTS = int(os.environ.get("AG_TEST_FAULTS", "3"))
SEED = int(os.environ.get("AG_TEST_SEED", "7"))
_SIZE = 4
_COMPUTE_S = 0.02


class Striker:
    """Strikes the processes of a job at random. `struck`: the processes that it has killed or stopped."""

    def __init__(self, job: Job, generator: random.Random) -> None:
        self._job, self._random = job, generator
        self.struck: set[int] = set()

    def kill_one(self) -> None:
        self._end(self._victims(1), signal.SIGKILL)

    def kill_two_at_once(self) -> None:
        self._end(self._victims(2), signal.SIGKILL)

    def kill_all_but_one(self) -> None:
        self._end(self._victims(_SIZE - 1), signal.SIGKILL)

    def kill_rank_0(self) -> None:
        self._end([self._job.processes()[0]], signal.SIGKILL)

    def kill_another_while_the_group_shrinks(self) -> None:
        first, second = self._victims(2)
        self._end([first], signal.SIGKILL)
        time.sleep(0.6 * self._random.random())
        self._end([second], signal.SIGKILL)

    def kill_another_while_the_group_grows(self) -> None:
        self._while_it_grows(lambda newcomers: self._victims(1))

    def kill_the_newcomer(self) -> None:
        self._while_it_grows(lambda newcomers: newcomers)

    def stop_one_for_ever(self) -> None:
        self._end(self._victims(1), signal.SIGSTOP)

    def _while_it_grows(self, choose: Callable[[list[int]], list[int]]) -> None:
        before = self._job.started()
        self.kill_one()
        while not (newcomers := sorted(self._job.started() - before)):
            time.sleep(0.01)
        time.sleep(0.4 * self._random.random())
        self._end(choose(newcomers), signal.SIGKILL)

    def _victims(self, count: int) -> list[int]:
        return self._random.sample(sorted(set(self._job.processes().values()) - self.struck), count)

    def _end(self, pids: list[int], number: signal.Signals) -> None:
        self.struck |= set(pids)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


_KINDS = [
    Striker.kill_one,
    Striker.kill_two_at_once,
    Striker.kill_all_but_one,
    Striker.kill_rank_0,
    Striker.kill_another_while_the_group_shrinks,
    Striker.kill_another_while_the_group_grows,
    Striker.kill_the_newcomer,
    Striker.stop_one_for_ever,
]


@pytest.mark.timeout(600 + 120 * NUM_FAULTS)
def test_a_job_gets_over_random_faults() -> None:
    print(f"AG_TEST_SEED={SEED} AG_TEST_FAULTS={NUM_FAULTS}")
    generator = random.Random(SEED)
    kinds = [kind for _ in range(NUM_FAULTS // len(_KINDS) + 1) for kind in generator.sample(_KINDS, len(_KINDS))]
    with Job("elastic", _SIZE, _COMPUTE_S, SEED) as job:
        job.begin()
        for number, kind in enumerate(kinds[:NUM_FAULTS]):
            job.wait_until_complete(time.monotonic(), generator.randint(1, 10))
            before = set(job.processes().values())
            striker = Striker(job, generator)
            print(f"fault {number}: {kind.__name__}", flush=True)
            kind(striker)
            job.wait_until_complete(time.monotonic(), 2)
            after = set(job.processes().values())
            assert before - striker.struck <= after, f"a process that was not struck has ended: {before} {after}"
            assert not striker.struck & after, f"a struck process is back: {striker.struck} {after}"
        _, digests = job.end()
        assert len(digests) == 1, f"weights differ: {digests}"
