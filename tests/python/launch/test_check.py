# SPDX-License-Identifier: Apache-2.0
"""`agspeed run --check`: the table of hosts, and findings with remedies. `fake_ssh.py` stands for ssh."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agspeed.launch.check.facts import Facts, Interface
from agspeed.launch.check.findings import Seen, findings
from agspeed.launch.frames import FrameError
from tests.python.launch.jobs import TIMEOUT_S, Job

LOOPBACK, ETHERNET = Interface("lo", "127.0.0.1", True), Interface("eth0", "10.0.0.1", True)
FACTS = Facts("3.12.1", "2.14.0", 0.0, 1 << 30, -1, 1 << 30, (LOOPBACK, ETHERNET))
FIRST = Seen("a", FACTS, 0.0)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Job(tmp_path) as job:
        yield job
        job.waits_for_nothing_left()


def check(job: Job, *options: str | Path) -> tuple[int, list[str], str]:
    """Returns the status, the lines of stdout, and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "agspeed", "run", "--check", *map(str, options)],
        env=job.environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_all_hosts_that_answer_are_in_the_table_and_the_others_are_findings(job: Job) -> None:
    status, lines, err = check(job, "-H", "node0:2,down:1,localhost:1", "--network-interfaces", "no-such-interface")
    assert (status, err) == (1, "")
    assert [line.split()[:2] for line in lines[1:3]] == [
        [name, platform.python_version()] for name in ("node0", "localhost")
    ]
    assert "! host down cannot be reached: ssh: connect to host down port 22: No route to host" in "\n".join(lines)
    for name in ("node0", "localhost"):
        assert f"! host {name} has no interface no-such-interface that is up" in "\n".join(lines)


def test_a_script_finds_the_hosts_and_the_status_says_whether_there_are_findings(job: Job) -> None:
    script = job.folder / "find"
    script.write_text("#!/bin/sh\necho node0\n")
    script.chmod(0o755)
    status, lines, err = check(job, "--host-discovery-script", script, "--slots-per-host", "2")
    assert err == "" and lines[1].startswith("node0 ")
    assert (lines[2] == "No findings.") is (status == 0)
    script.write_text("#!/bin/sh\n")
    assert check(job, "--host-discovery-script", script)[::2] == (
        1,
        f"agspeed: --host-discovery-script {script} has found no host; see why it prints none.\n",
    )


def test_equal_hosts_with_enough_of_everything_have_no_findings() -> None:
    assert findings([FIRST, Seen("b", replace(FACTS, python="3.12.9", most_descriptors=1024), -0.9)], 8, ["eth0"]) == []


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        (replace(FIRST, facts=replace(FACTS, python="3.11.2")), "host a has Python 3.11.2, and host first has 3.12.1;"),
        (replace(FIRST, facts=replace(FACTS, torch="")), "host a has no torch; run pip install torch there."),
        (replace(FIRST, facts=replace(FACTS, torch="2.11.0")), "host a has torch 2.11.0, and host first has 2.14.0;"),
        (replace(FIRST, ahead_s=-3.0), "the clock of host a is 3.0 s behind this host's; run a time service there"),
        (replace(FIRST, facts=replace(FACTS, shared_memory=-1)), "host a has no /dev/shm; run mount -t tmpfs"),
        (replace(FIRST, facts=replace(FACTS, shared_memory=9 << 20)), "host a has 9 MiB free in /dev/shm;"),
        (
            replace(FIRST, facts=replace(FACTS, most_descriptors=1000)),
            "host a limits a process to 1000 descriptors, and",
        ),
        (replace(FIRST, facts=replace(FACTS, most_descriptors=1100)), "and a rank needs 1188; raise the limit nofile"),
        (replace(FIRST, facts=replace(FACTS, interfaces=(LOOPBACK,))), "host a has no network interface that is up"),
    ],
)
def test_each_thing_to_correct_is_one_sentence_with_a_remedy(host: Seen, sentence: str) -> None:
    (found,) = findings([replace(FIRST, name="first"), host], 100, [])
    assert sentence in found


@pytest.mark.parametrize("key", ["python", "torch", "clock", "shared_memory", "most_descriptors", "room", "interfaces"])
def test_facts_of_an_agent_are_checked(key: str) -> None:
    whole = {
        "python": "3.12.1", "torch": "2.14.0", "clock": 1.5, "shared_memory": 5, "most_descriptors": 9, "room": 7,
        "interfaces": [{"name": "eth0", "address": "", "is_up": True}],
    }  # fmt: skip
    assert Facts.of(whole).interfaces == (Interface("eth0", "", True),)
    for wrong in (None, [1], "\x1b[2J", "x" * 300):
        with pytest.raises(FrameError):
            Facts.of({**whole, key: wrong})
