# SPDX-License-Identifier: Apache-2.0
"""A job on several hosts: what its ranks find there, where its key is, and what is said of hosts that fail.

`fake_ssh.py` stands for ssh, so the hosts are this one. `test_sshd.py` uses the real ssh.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agspeed.launch import agent
from tests.python.launch import fake_ssh
from tests.python.launch.jobs import TIMEOUT_S, Job, wait_until

HOSTS = "node0:2,node1:2"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Job(tmp_path) as job:
        yield job
        job.waits_for_nothing_left()


def run(job: Job, text: str, *options: str | Path, num_ranks: int = 4, **variables: str) -> tuple[int, list[str], str]:
    """Returns the status, the sorted lines of stdout, and stderr."""
    status = job.start(num_ranks, text, *options, **variables).wait(TIMEOUT_S)
    return status, sorted((job.folder / "out").read_text().splitlines()), job.errors()


NAMES = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE HOROVOD_CROSS_RANK HOROVOD_CROSS_SIZE HOROVOD_HOSTNAME MASTER_ADDR"
SAYS_NUMBERS = f"import os; print(*(os.environ[name] for name in '{NAMES}'.split()))"
NUMBERS = [
    "[0]<stdout>:0 4 0 2 0 2 node0 127.0.0.1",
    "[1]<stdout>:1 4 1 2 0 2 node0 127.0.0.1",
    "[2]<stdout>:2 4 0 2 1 2 node1 127.0.0.1",
    "[3]<stdout>:3 4 1 2 1 2 node1 127.0.0.1",
]


def test_ranks_of_two_hosts_find_their_numbers(job: Job) -> None:
    assert run(job, SAYS_NUMBERS, "-H", HOSTS) == (0, NUMBERS, "")


def test_a_host_file_means_the_same(job: Job) -> None:
    path = job.folder / "hosts"
    path.write_text("node0 slots=2\nnode1 slots=2 # the second\n")
    assert run(job, SAYS_NUMBERS, "--hostfile", path) == (0, NUMBERS, "")


def test_this_host_can_be_one_of_them_and_needs_no_ssh(job: Job) -> None:
    log = job.folder / "log"
    status, out, err = run(job, SAYS_NUMBERS, "-H", "localhost:2,node1:2", SSH_LOG=str(log))
    assert (status, out[2:], err) == (0, NUMBERS[2:], "") and len(out) == 4
    assert [line.split("\0")[-2] for line in log.read_text().splitlines()] == ["node1"]


def test_ranks_have_the_variables_and_the_folder_of_the_launcher_but_not_what_is_of_one_host(job: Job) -> None:
    names = ["OF_JOB", "NCCL_IB_DISABLE", "HOME"]
    text = f"import json, os; print(json.dumps([os.getcwd(), *(os.environ.get(name) for name in {names})]))"
    value = "a\n'b' $c \u00e9"
    status, out, _ = run(job, text, "-H", "node0:1", "--tcp", num_ranks=1, OF_JOB=value, HOME="/of/launcher")
    assert status == 0
    assert json.loads(out[0].removeprefix("[0]<stdout>:")) == [str(Path.cwd()), value, "1", "/"]


def test_the_command_reaches_other_hosts_word_by_word(job: Job) -> None:
    """No shell there gets to interpret it."""
    words = ["a b", "", "$HOME", "`id`", "'", '"', "\\", "*", "a\nb", "-x", ";", "#"]
    job.start(1, "import json, sys; print(json.dumps(sys.argv[1:]))", "-H", "node0:1", words=words).wait(TIMEOUT_S)
    line = (job.folder / "out").read_text()
    assert json.loads(line.removeprefix("[0]<stdout>:")) == words, job.errors()


def test_ssh_gets_its_options_asks_nothing_and_checks_keys(job: Job) -> None:
    log, key = job.folder / "log", job.folder / "key"
    key.touch()
    run(job, "", "-H", "me@node0:1", "-p", "2222", "-i", key, num_ranks=1, SSH_LOG=str(log))
    words = log.read_text().rstrip("\n").split("\0")
    options, (host, command) = words[: words.index("--")], words[words.index("--") + 1 :]
    assert host == "me@node0" and command.startswith(f"exec {sys.executable} ")
    assert {"-oBatchMode=yes", "-T"} <= set(options) and not any("StrictHostKeyChecking" in each for each in options)
    assert options[options.index("-p") + 1] == "2222" and options[options.index("-i") + 1] == str(key)


def test_the_address_of_the_first_host_can_be_named(job: Job) -> None:
    text = "import os; print(os.environ['MASTER_ADDR'])"
    _, out, _ = run(job, text, "-H", "node0:1,node1:1", "--master-addr", "10.1.2.3", num_ranks=2)
    assert out == ["[0]<stdout>:10.1.2.3", "[1]<stdout>:10.1.2.3"]


def test_a_folder_that_another_host_has_not_is_named(job: Job) -> None:
    """The folder is removed between the launcher's start and the agent's."""
    folder = job.folder / "removed"
    folder.mkdir()
    program = job.folder / "programs" / "ssh"
    program.write_text(program.read_text().replace("exec", f"rm -rf {folder}; cd /; exec"))
    status, out, err = run(job, "import os; print(os.getcwd())", "-H", "node0:1", num_ranks=1, cwd=folder)
    assert (status, out) == (0, ["[0]<stdout>:/"])
    assert err == f"agspeed: host node0 (rank 0) has no folder {folder}, so its ranks run in /\n"


def test_output_of_all_hosts_is_written_to_files(job: Job) -> None:
    text = "import os, sys; print(os.environ['RANK']); print('to stderr', file=sys.stderr)"
    assert run(job, text, "-H", HOSTS, "--output-filename", job.folder / "logs")[0] == 0
    for rank in range(4):
        assert (job.folder / "logs" / f"rank.{rank}" / "stdout").read_text() == f"{rank}\n"
        assert (job.folder / "logs" / f"rank.{rank}" / "stderr").read_text() == "to stderr\n"


def test_much_output_arrives_whole(job: Job) -> None:
    """More than a window, and the job ends while the agent still holds a part."""
    status, out, _ = run(job, "for n in range(40000): print(n, 'x' * 50)", "-H", "node0:1,node1:1", num_ranks=2)
    assert status == 0
    for rank in (0, 1):
        assert sum(line.startswith(f"[{rank}]") for line in out) == 40000


READS_KEY = """
import os, pathlib, time
folder = pathlib.Path(os.environ["FOLDER"])
draft = folder / f"draft.{os.environ['RANK']}"
draft.touch(0o600)
draft.write_text(pathlib.Path(os.environ["AGSPEED_JOB_KEY_FILE"]).read_text())
draft.rename(folder / f"key.{os.environ['RANK']}")
while not (folder / "seen").exists():
    time.sleep(0.01)
"""


@pytest.mark.parametrize("own", ["", "variable", "file"])
def test_the_key_is_in_the_memory_of_the_ranks_alone(job: Job, own: str) -> None:
    """All ranks of all hosts have the same one. No command line, environment or output of any process has it."""
    log, file = job.folder / "log", job.folder / "own"
    file.touch(0o600)
    file.write_text("sixteen bytes, and more\n")
    given = {"": {}, "variable": {"AGSPEED_JOB_KEY": file.read_text()}, "file": {"AGSPEED_JOB_KEY_FILE": str(file)}}
    variables = {"FOLDER": str(job.folder), "SSH_LOG": str(log), **given[own]}
    launcher = job.start(4, READS_KEY, "-H", "relay-0:2,node1:2", "--verbose", **variables)
    wait_until(lambda: len(list(job.folder.glob("key.*"))) == 4, "all ranks have read the key")
    keys = {path.read_text() for path in job.folder.glob("key.*")}
    assert len(keys) == 1
    key = keys.pop().encode()
    assert key == file.read_bytes() if own else len(key) == 64
    seen = {pid: _public(pid) for pid in job.left()}
    (job.folder / "seen").touch()
    assert launcher.wait(TIMEOUT_S) == 0, job.errors()
    assert len(seen) >= 10  # the launcher, a relay, two agents, two keepers and four ranks
    has_it = [pid for pid, content in seen.items() if key in content and pid != launcher.pid]
    assert has_it == [] and (own == "variable" or key not in seen[launcher.pid])
    assert all(key not in (job.folder / name).read_bytes() for name in ("out", "err", "log"))


def _public(pid: int) -> bytes:
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))


FAILURES = {
    "denied": "ssh: root@denied: Permission denied (publickey,password); name the key of your user there with --ssh",
    "changed": "ssh: Host key verification failed; the host has another key than before",
    "stranger": "ssh: Host key verification failed; the host's key is not known here: check and keep it with: ",
    "refusing": "ssh: connect to host refusing port 22: Connection refused; start sshd there, or name its port",
    "nowhere": "ssh: Could not resolve hostname nowhere: Name or service not known; check the name in --hosts",
    "down": "ssh: connect to host down port 22: No route to host; try the connection alone: ssh down true",
}
MUST_NOT_RUN = "import os, pathlib; pathlib.Path(os.environ['FOLDER'], 'has-run').touch()"


def refused(job: Job, *options: str, text: str = MUST_NOT_RUN, **variables: str) -> tuple[int, str]:
    """Runs a job that cannot be started. Returns its status, and the one line that it has written to stderr."""
    status, out, err = run(job, text, *options, FOLDER=str(job.folder), **variables)
    assert out == [] and err.count("\n") == 1, err
    assert not (job.folder / "has-run").exists()
    return status, err


@pytest.mark.parametrize("host", fake_ssh.FAILURES)
def test_a_host_that_ssh_does_not_reach_ends_the_job_before_any_rank_runs(job: Job, host: str) -> None:
    status, err = refused(job, "-H", f"node0:2,{host}:2")
    assert status == 1
    assert err.startswith(f"agspeed: host {host} (ranks 2 to 3) cannot be reached: {FAILURES[host]}"), err


def test_a_host_that_does_not_answer_ends_the_job_after_a_while(job: Job) -> None:
    status, err = refused(job, "-H", "localhost:2,hangs:2", "--start-timeout", "3")
    assert (status, err.partition(";")[0]) == (1, "agspeed: host hangs (ranks 2 to 3) was not ready after 3 s")


def test_a_missing_interpreter_is_named(job: Job) -> None:
    status, err = refused(job, "-H", "node0:2,node1:2", "--remote-python", "/no/python")
    assert status == 1 and "/no/python must exist there: name that host's interpreter with --remote-python" in err


def test_a_host_without_agspeed_is_named(job: Job) -> None:
    python = job.folder / "python"
    python.write_text(f'#!/bin/sh\nshift 2; exec {sys.executable} -I -S -c "import agspeed"\n')
    python.chmod(0o755)
    status, err = refused(job, "-H", "node0:2,node1:2", "--remote-python", str(python))
    assert status == 1 and f"{python} of that host has no agspeed there: install the version of this host" in err


def test_a_command_that_no_host_has_is_named(job: Job) -> None:
    status, _, err = run(job, "", "-H", HOSTS, command=["no-such-command"])
    assert status == 2
    reason = "cannot start no-such-command: No such file or directory; check its name and path."
    assert err in [
        f"agspeed: {host}: {reason}\n" for host in ("host node0 (ranks 0 to 1)", "host node1 (ranks 2 to 3)")
    ]


@pytest.mark.parametrize("fault", ["", "a link", "others write"])
def test_a_folder_elsewhere_is_used_only_if_no_other_user_can_have_made_it(tmp_path: Path, fault: str) -> None:
    folder = tmp_path / "from_launcher"
    (folder / "agspeed" / "launch").mkdir(parents=True)
    (folder / "agspeed" / "launch" / "agent.py").write_text("def main(): return 7")
    if fault == "others write":
        folder.chmod(0o777)
    if fault == "a link":
        if os.getuid() != 0:
            pytest.skip("only root can give a link to another user")
        folder.rename(tmp_path / "real")
        folder.symlink_to(tmp_path / "real")
        os.lchown(folder, 12345, 12345)
    command = [sys.executable, "-I", "-S", *agent.words(str(folder), is_local=False)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 7) == (fault == ""), done.stderr
    assert fault == "" or "No module named 'agspeed'" in done.stderr


def test_a_missing_ssh_is_named(job: Job) -> None:
    (job.folder / "programs" / "ssh").unlink()
    status, err = refused(job, "-H", "node0:4", PATH=str(job.folder / "programs"))
    assert (status, err) == (
        2,
        "agspeed: cannot start ssh: No such file or directory; install it, or put it on PATH.\n",
    )


def test_a_login_that_prints_is_named(job: Job) -> None:
    status, err = refused(job, "-H", "node0:2,chatty-1:2")
    assert status == 1 and "host chatty-1 (ranks 2 to 3) sent something else than the agent's frames: 'Welcome" in err
    assert "such as .bashrc, must print nothing" in err


def frame(message: object, data: bytes = b"") -> bytes:
    body = json.dumps(message).encode()
    return struct.pack(">II", len(body), len(data)) + body + data


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 100,
        struct.pack(">II", 1 << 31, 0),
        struct.pack(">II", 5, 0) + b"[[[[[",
        frame({"output": [2, 0]}, b"x"),
        frame({"output": [-1, 0]}, b"x"),
        frame({"output": [0, 2]}, b"x"),
        frame({"output": 3}),
        frame({"failed": [0, 0]}),
        frame({"failed": [9, 1]}),
        frame({"ready": {}}),
        frame({"ready": {"version": "1", "folder": "", "port": 0, "address": "", "launcher_address": ""}}),
        frame({"ready": {"version": "1", "folder": "", "port": 9, "address": "$(id)", "launcher_address": ""}}),
        frame({"output": [0, 0]}, bytes(60000)) * 60,
        frame({"unknown": 1}),
    ],
)
def test_an_agent_that_sends_anything_else_ends_the_job(job: Job, data: bytes) -> None:
    evil = {"FOLDER": str(job.folder), "EVIL": str(job.folder / "evil")}
    (job.folder / "evil").write_bytes(data)
    status, _, err = run(job, MUST_NOT_RUN, "-H", "localhost:2,evil-1:2", **evil)
    assert status == 1 and not (job.folder / "has-run").exists()
    assert "host evil-1 (ranks 2 to 3) sent something else than the agent's frames" in err and "Traceback" not in err


@pytest.mark.slow
def test_another_version_there_is_named(job: Job) -> None:
    ready = {"version": "9.9", "folder": "", "port": 9, "address": "", "launcher_address": ""}
    (job.folder / "evil").write_bytes(frame({"ready": ready}))
    status, err = refused(job, "-H", "localhost:2,evil-1:2", EVIL=str(job.folder / "evil"))
    assert status == 1 and "host evil-1 (ranks 2 to 3) has agspeed 9.9, and this host has " in err


def test_as_many_ranks_start_as_there_are_slots(job: Job) -> None:
    _, out, _ = run(job, SAYS_NUMBERS, "-H", HOSTS, num_ranks=None)
    assert out == NUMBERS


_TRAINS = """
import datetime, torch, agspeed
from torch import nn, distributed
distributed.init_process_group("agspeed", timeout=datetime.timedelta(seconds=50))
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
torch.manual_seed(distributed.get_rank())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
weights = [torch.empty(8) for _ in range(4)]
distributed.all_gather(weights, model.module.weight.detach()[0])
print(all(torch.equal(weights[0], each) for each in weights), sum(weights[0].isfinite()).item())
distributed.destroy_process_group()
"""


@pytest.mark.thorough
def test_ranks_of_two_hosts_train(job: Job) -> None:
    status, out, err = run(job, _TRAINS, "-H", HOSTS, AGSPEED_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")
    assert status == 0, err
    assert out == [f"[{rank}]<stdout>:True 8" for rank in range(4)]
