# SPDX-License-Identifier: Apache-2.0
"""horovod.run() on several hosts, and for elastic jobs. Its launcher is the one of `agspeed run`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import agspeed.horovod
from agspeed import native
from agspeed.errors import UserError
from tests.python.launch.jobs import Job
from tests.python.support.ssh_hosts import SshHosts, ssh_hosts, unavailable

needs_native = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")
_TIMEOUT_S = 240
"""Loading torch takes long on a busy machine."""
_CALLER = """
import socket, sys
import horovod

def reduce(scale, offset=0):  # the launcher needs no torch
    import horovod.torch as hvd, torch
    hvd.init()
    total = hvd.allreduce(torch.full((100_000,), scale), op=hvd.Sum) + offset + hvd.rank()
    print("rank", hvd.rank(), "runs")
    return {"host": socket.gethostname(), "total": total}

def train(num_steps):
    import horovod.torch as hvd, torch
    hvd.init()
    state = hvd.elastic.TorchState(step=0, sum=torch.zeros(1))

    @hvd.elastic.run
    def steps(state):
        while state.step < num_steps:
            state.sum = state.sum + hvd.allreduce(torch.ones(1), op=hvd.Sum)
            state.step += 1
            state.commit()
        return [hvd.rank(), float(state.sum)]

    return steps(state)

def leave():
    sys.exit(0)

if __name__ == "__main__":
    function, words = sys.argv[1], eval(sys.argv[2])
    try:
        results = horovod.run(globals()[function], **words)
    except RuntimeError as error:
        sys.exit(f"RuntimeError: {error}")
    for each in results:
        print(each if isinstance(each, list) else (each["host"], each["total"].unique().tolist()))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "caller.py"
    path.write_text(_CALLER)
    return path


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    if reason := unavailable():
        pytest.skip(reason)
    with ssh_hosts(2, tmp_path_factory.mktemp("hosts")) as found:
        yield found
        found.end_all()


def command(script: Path, function: str, **words: object) -> list[str]:
    return [sys.executable, "-m", "agspeed.horovod", str(script), function, repr(words)]


@needs_native
@pytest.mark.cluster
@pytest.mark.slow
def test_a_function_runs_on_hosts_that_ssh_reaches(hosts: SshHosts, script: Path, tmp_path: Path) -> None:
    words = {"args": (2.0,), "kwargs": {"offset": 1}, "num_proc": 2, "hosts": "root@host0:1,host1:1"}
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        process = hosts.start(command(script, "reduce", **words), out, err)
        status = process.wait(_TIMEOUT_S)
    hosts.nothing_is_left()
    lines = (tmp_path / "out").read_text().splitlines()
    assert status == 0, (tmp_path / "err").read_text()
    assert lines[-2:] == ["('host0', [5.0])", "('host1', [6.0])"]
    assert sorted(lines[:-2]) == ["[0]<stdout>:rank 0 runs", "[1]<stdout>:rank 1 runs"]


@needs_native
@pytest.mark.slow
def test_a_function_of_an_elastic_job_returns_the_results_of_the_least_number_of_ranks(
    script: Path, tmp_path: Path
) -> None:
    words = {"args": (5,), "num_proc": 2, "min_num_proc": 1, "hosts": "localhost:1,node0:1"}
    with Job(tmp_path) as job:
        done = subprocess.run(
            command(script, "train", **words),
            env=job.environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
        job.waits_for_nothing_left()
    assert (done.returncode, done.stdout) == (0, "[0, 10.0]\n"), done.stderr


@needs_native
@pytest.mark.slow
def test_a_rank_that_ends_within_the_function_is_an_error(script: Path, tmp_path: Path) -> None:
    with Job(tmp_path) as job:
        done = subprocess.run(
            command(script, "leave", num_proc=1),
            env=job.environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    assert done.stderr == "RuntimeError: rank 0 ended with status 0 before the function had returned.\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"use_mpi": True}, "--mpi: `agspeed run` starts ranks on hosts that --hosts or --hostfile names, without MPI"),
        ({"num_proc": "many"}, "horovod.run\\(\\): argument -np/--num-proc: invalid int value: 'many'"),
        ({"hosts": "node0"}, "'node0' is not a host with slots"),
        ({"num_proc": 2, "min_np": 3}, "--min-np 3, -np 2, --max-np 2: write numbers of ranks that grow"),
        ({"cooldown_range": (3, 2), "min_np": 1}, "--blacklist-cooldown-range 3 2: write two numbers of seconds"),
    ],
    ids=str,
)
def test_arguments_that_make_no_job_are_refused(words: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        agspeed.horovod.run(command, **words)  # type: ignore[arg-type]
