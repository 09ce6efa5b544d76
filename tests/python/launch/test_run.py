# SPDX-License-Identifier: Apache-2.0
"""`agspeed run`: the ranks' environment, their output, and the end of a job."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from agspeed.errors import UserError
from agspeed.launch.ranks import INHERITED, Ranks
from tests.python.support.launcher import TIMEOUT_S, run, start


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_ranks_find_their_numbers_and_where_to_meet() -> None:
    names = "HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_RANK HOROVOD_CROSS_SIZE RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR"
    status, out, _ = run("-np", "2", *python(f"import os; print(*(os.environ[name] for name in '{names}'.split()))"))
    assert status == 0
    assert sorted(out.splitlines()) == [
        "[0]<stdout>:0 2 0 1 0 2 0 127.0.0.1",
        "[1]<stdout>:1 2 1 1 1 2 1 127.0.0.1",
    ]


def test_flags_become_the_settings_of_ranks() -> None:
    names = (
        "HOROVOD_FUSION_THRESHOLD HOROVOD_CACHE_CAPACITY HOROVOD_STALL_CHECK_DISABLE NCCL_IB_DISABLE "
        "AGSPEED_SOCKET_IFNAME HOROVOD_TIMELINE HOROVOD_TIMELINE_MARK_CYCLES HOROVOD_AUTOTUNE HOROVOD_AUTOTUNE_LOG"
    )
    flags = ["--timeline-filename", "/a/b.json", "--timeline-mark-cycles", "--no-autotune", "--autotune-log-file", "/c"]
    flags += ["--fusion-threshold-mb", "8", "--cache-capacity", "5", "--no-stall-check", "--tcp"]
    flags += ["--network-interfaces", "lo,eth7"]
    text = f"import os; print(*(os.environ[name] for name in '{names}'.split()))"
    status, out, _ = run("-np", "1", *flags, *python(text))
    assert (status, out) == (0, "[0]<stdout>:8388608 5 1 1 lo,eth7 /a/b.json 1 0 /c\n")


def test_the_job_key_is_in_the_memory_of_the_ranks_alone() -> None:
    """All ranks have the same key and each job another one. No environment, command line or output contains it."""
    text = """
import hashlib, os, pathlib, stat
path = os.environ["AGSPEED_JOB_KEY_FILE"]
key = pathlib.Path(path).read_text()
seen = "".join(pathlib.Path(f"/proc/{at}/{name}").read_text(errors="replace")
               for at in (os.getpid(), os.getppid()) for name in ("cmdline", "environ"))
print(len(key), key in seen, oct(stat.S_IMODE(os.stat(path).st_mode)), hashlib.sha256(key.encode()).hexdigest())
"""
    jobs = [run("-np", "2", *python(text)) for _ in range(2)]
    lines = [[line.split(":", 1)[1] for line in out.splitlines()] for _, out, _ in jobs]
    assert lines[0][0] == lines[0][1] and lines[1][0] == lines[1][1]
    assert lines[0][0] != lines[1][0]
    assert lines[0][0].startswith("64 False 0o600 ")


def test_a_key_of_the_users_own_is_left_to_him() -> None:
    text = "import os; print(os.environ['AGSPEED_JOB_KEY'], 'AGSPEED_JOB_KEY_FILE' in os.environ)"
    _, out, _ = run("-np", "1", *python(text), AGSPEED_JOB_KEY="sixteen bytes and more")
    assert out == "[0]<stdout>:sixteen bytes and more False\n"


def test_the_first_rank_that_fails_ends_the_job_with_its_status_and_last_lines() -> None:
    text = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit('no more data'); time.sleep(600)"
    status, _, err = run("-np", "3", *python(text))
    assert status == 1
    assert err.endswith("agspeed: rank 1 ended with status 1, so the job was ended; its last lines:\n  no more data\n")


def test_a_rank_that_a_signal_ends_is_named_by_it() -> None:
    status, _, err = run("-np", "1", *python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert status == 128 + signal.SIGKILL
    assert "rank 0 ended by signal SIGKILL" in err


def test_ending_the_launcher_ends_the_ranks(tmp_path: Path) -> None:
    text = f"import os, pathlib, time; pathlib.Path('{tmp_path}', str(os.getpid())).touch(); time.sleep(600)"
    process = start("-np", "2", *python(text))
    until = time.monotonic() + TIMEOUT_S
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    left = [path.name for path in tmp_path.iterdir() if Path("/proc", path.name).exists()]
    assert len(list(tmp_path.iterdir())) == 2 and left == []


def test_output_is_written_to_files_as_well(tmp_path: Path) -> None:
    text = "import os, sys; print('out', os.environ['RANK']); print('err', file=sys.stderr)"
    status, out, _ = run("-np", "2", "--output-filename", tmp_path / "logs", "-prefix-timestamp", *python(text))
    assert status == 0
    for rank in (0, 1):
        assert (tmp_path / "logs" / f"rank.{rank}" / "stdout").read_text() == f"out {rank}\n"
        assert (tmp_path / "logs" / f"rank.{rank}" / "stderr").read_text() == "err\n"
        assert f"[{rank}]<stdout>:out {rank}\n" in out
    assert all(not line.startswith("[") for line in out.splitlines())  # each line begins with the time


CONFIG = """
controller: gloo
params:
  fusion_threshold_mb: 8
  cycle_time_ms: 3.5
autotune:
  enabled: true
  log_file: /c
timeline:
  mark_cycles: false
stall_check:
  enabled: false
  warning_time_seconds: 90
logging:
"""


def test_a_config_file_holds_over_flags_before_it_and_flags_behind_it_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    names = (
        "HOROVOD_FUSION_THRESHOLD HOROVOD_AUTOTUNE HOROVOD_AUTOTUNE_LOG HOROVOD_TIMELINE_MARK_CYCLES "
        "HOROVOD_STALL_CHECK_TIME_SECONDS HOROVOD_STALL_CHECK_DISABLE HOROVOD_CACHE_CAPACITY"
    )
    text = f"import os; print(*(os.environ.get(name, '-') for name in '{names}'.split()))"
    before = ["--fusion-threshold-mb", "1", "--no-autotune", "--cache-capacity", "7"]
    behind = ["--stall-check-warning-time-seconds", "30"]
    status, out, err = run("-np", "1", *before, "--config-file", file, *behind, *python(text))
    assert (status, out) == (0, "[0]<stdout>:8388608 1 /c 0 30 1 7\n")
    assert err == "agspeed: ignored, because they have no effect here: --cycle-time-ms, --gloo\n"
    _, out, _ = run("-np", "1", "--config-file", file, "--no-autotune", "--stall-check", *python(text))
    assert out == "[0]<stdout>:8388608 0 /c 0 90 - -\n"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("params: [1, 2]", "params holds [1, 2]; write keys with values"),
        ("param: {}", "there is no section 'param'; there are controller, params, autotune"),
        ("params: {fusion: 3}", "params has no key 'fusion'; it has cache_capacity"),
        ("params: {cache_capacity: many}", "params.cache_capacity is 'many'; write a whole number"),
        ("autotune: {enabled: 1}", "autotune.enabled is 1; write true or false"),
        ("controller: ring", "No such controller supported: ring"),
        ("controller: mpi", "--mpi: `agspeed run` starts ranks on hosts that"),
        ("params: {cache_capacity: -1}", "--cache-capacity -1: write a number, 0 or more"),
        ("a: [", "is not valid YAML: while parsing"),
        ("!!python/object/apply:os.system ['touch pwned']", "is not valid YAML: could not determine a constructor"),
    ],
)
def test_a_config_file_that_is_wrong_says_where(content: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(content)
    status, out, err = run("-np", "1", "--config-file", file, "true")
    assert (status, out) == (2, "") and sentence in err, err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-np", "1", "--config-file", "/nowhere.yaml", "true"], "--config-file /nowhere.yaml: No such file"),
        (["python", "x.py"], "say how many ranks to start"),
        (["-np", "2"], "name the command that every rank runs"),
        (["-np", "0", "true"], "say how many ranks to start"),
        (["-np", "2", "-H", "localhost", "true"], "Invalid host input, please make sure it has format as"),
        (["-np", "2", "-H", "localhost:1", "true"], "Requested more processes (2) than there are available slots (1)"),
        (["-np", "2", "-H", "node7:1", "true"], "Requested more processes (2) than there are available slots (1)"),
        (["-H", "node7:2,node7:1", "true"], "--hosts node7:2,node7:1: node7 is named twice"),
        (["--hostfile", "/nowhere", "true"], "--hostfile /nowhere: No such file or directory"),
        (["-H", "a:1", "--hostfile", "/nowhere", "true"], "--hosts and --hostfile name hosts twice"),
        (["-H", "a:1", "--ssh-port", "0", "true"], "--ssh-port 0: write the port of sshd"),
        (["-H", "a:1", "--ssh-identity-file", "/nowhere", "true"], "--ssh-identity-file /nowhere: there is no such"),
        (["-H", "a:1", "--start-timeout", "0", "true"], "--start-timeout 0.0: write a number of seconds"),
        (
            ["-np", "2", "--jsrun", "--mpi", "true"],
            "--jsrun, --mpi: `agspeed run` starts ranks on hosts that",
        ),
        (
            ["-np", "1", "--host-discovery-script", "/nowhere", "true"],
            "--host-discovery-script /nowhere: there is no such",
        ),
        (["--host-discovery-script", "/bin/true", "true"], "say how many ranks to start"),
        (["-np", "1", "--host-discovery-script", "/bin/true", "-H", "a:1", "true"], "use one of them"),
        (["-np", "1", "--slots-per-host", "2", "true"], "--slots-per-host is for hosts that --host-discovery-script"),
        (
            ["-np", "1", "--blacklist-cooldown-range", "5", "1", "true"],
            "--blacklist-cooldown-range 5 1: write two numbers",
        ),
        (["-np", "1", "--cache-capacity", "-1", "true"], "--cache-capacity -1: write a number, 0 or more"),
        (["-np", "1", "no-such-command-here"], "cannot start no-such-command-here: No such file"),
    ],
)
def test_what_cannot_be_started_says_why(words: list[str], sentence: str) -> None:
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert sentence in err


def test_the_reason_of_a_failed_start_is_not_lost_in_the_end() -> None:
    """The keeper ends by itself while the launcher asks it to end."""
    for _ in range(20):
        with (
            pytest.raises(UserError, match="cannot start no-such-command-here"),
            Ranks(["no-such-command-here"], [{}], [INHERITED]) as ranks,
        ):
            while not ranks.is_over:
                ranks.note_events()


def test_flags_without_matter_here_are_named_once() -> None:
    status, _, err = run("-np", "1", "--cycle-time-ms", "3", "--gloo", "--disable-cache", "true")
    assert status == 0
    assert err == "agspeed: ignored, because they have no effect here: --cycle-time-ms, --disable-cache, --gloo\n"


def test_the_build_is_shown() -> None:
    status, out, _ = run("--check-build")
    assert status == 0
    assert "Available Frameworks:\n    [ ] TensorFlow" in out and "] PyTorch" in out
