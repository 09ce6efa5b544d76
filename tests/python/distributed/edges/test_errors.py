# SPDX-License-Identifier: Apache-2.0
"""Errors are sentences that say what to do: about results, descriptors and timeouts, and in a forked process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agspeed import native
from agspeed.distributed.stand_in import install_as_default
from tests.python.distributed.edges import programs
from tests.python.distributed.edges.torchrun import torchrun
from tests.python.distributed.ranks import Ranks

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


def test_results_that_cannot_be_copied_back_are_one_line(tmp_path: Path) -> None:
    with Ranks(2) as ranks:
        for error in ranks.run(programs.error_of_copying_back, tmp_path):
            assert error.startswith("DistBackendError: copying the results back failed: ")
            assert "single memory location" in error
            assert "\n" not in error and "frame #" not in error


@pytest.mark.smoke
@pytest.mark.parametrize(("backend", "prepare"), [("agspeed", None), ("gloo", install_as_default)])
def test_the_timeout_of_a_group_can_be_set(tmp_path: Path, backend: str, prepare: Callable[[], None] | None) -> None:
    with Ranks(2, prepare=prepare) as ranks:
        [(error, warnings), _] = ranks.run(programs.error_after_set_timeout, tmp_path, backend, seconds=0.25)
    assert "its timeout of 0.25 s passed" in error
    assert not [text for text in warnings if "nccl" in text]


#: Varies the number of free descriptors when a group is made, and prints a line with each result.
FEW_DESCRIPTORS = """
import os, resource
import torch
from torch import distributed as dist
import agspeed

def make():
    dist.init_process_group("agspeed", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()

make()  # what is loaded once is loaded
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
for count in range(24):
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + count, most))
    try:
        make()
        outcome = "made"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, most))
    print(count, outcome)
"""


def test_a_process_without_descriptors_gets_an_error_that_says_so() -> None:
    run = subprocess.run([sys.executable, "-c", FEW_DESCRIPTORS], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    outcomes = [line.split(" ", 1)[1] for line in run.stdout.splitlines()]
    refused = [outcome for outcome in outcomes if outcome != "made"]
    assert len(outcomes) == 24 and outcomes[-1] == "made" and len(refused) > 3, run.stdout
    for outcome in refused:
        assert outcome.startswith("DistBackendError: cannot "), run.stdout
        assert "Too many open files" in outcome and "ulimit -n" in outcome, run.stdout


#: A forked child tries to use its parent's group and ends; the parent continues.
FORKED = """
dist.init_process_group("agspeed", timeout=datetime.timedelta(seconds=60))
value = torch.ones(1000)
dist.all_reduce(value)
kept = dist.irecv(torch.zeros(3, 4).t(), src=1 - rank, tag=7)
{before}
child = os.fork()
if child == 0:
    for name, act in {{{tries}}}.items():
        try:
            act()
        except Exception as error:
            (folder / f"{{name}}-{{rank}}").write_text(str(error))
    dist.destroy_process_group()
    sys.exit(7)
limit = time.monotonic() + 60
while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < limit:
    time.sleep(0.01)
if ended == (0, 0):
    os.kill(child, signal.SIGKILL)
    ended = os.waitpid(child, 0)
dist.barrier()
dist.send(torch.ones(4, 3), dst=1 - rank, tag=7)
kept.wait()
dist.all_reduce(value)
(folder / f"ended-{{rank}}").write_text(f"{{os.waitstatus_to_exitcode(ended[1])}} {{value[0].item()}}")
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "tries"),
    [
        ("", {"reduces": "lambda: dist.all_reduce(value)", "waits": "kept.wait"}),
        (
            "import agspeed.horovod.torch as hvd; hvd.init(); hvd.allreduce(value, name='first')",
            {"reduces": "lambda: hvd.allreduce(value, name='second')"},
        ),
    ],
    ids=["group", "horovod"],
)
def test_a_forked_child_ends_as_it_wants_to_and_leaves_the_group_alone(
    tmp_path: Path, before: str, tries: dict[str, str]
) -> None:
    acts = ", ".join(f"{name!r}: {act}" for name, act in tries.items())
    run = torchrun(tmp_path, FORKED.format(before=before, tries=acts), "--standalone")
    assert run.returncode == 0, run.stdout + run.stderr
    for rank in range(2):
        assert (tmp_path / f"ended-{rank}").read_text() == "7 4.0"
        for name in tries:
            assert "this process was forked from rank" in (tmp_path / f"{name}-{rank}").read_text()
