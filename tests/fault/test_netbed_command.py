# SPDX-License-Identifier: Apache-2.0
"""`agspeed netbed` as users type it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agspeed import netbed
from agspeed.cli import main


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own, because it may have to enter a user namespace."""
    done = subprocess.run([sys.executable, "-m", "agspeed", "netbed", *arguments], capture_output=True, text=True)
    if "are not possible here" in done.stderr or "unshare" in done.stderr:
        pytest.skip(netbed.unavailable() or done.stderr)
    return done


def test_it_runs_a_command_on_every_host():
    done = command(
        "--hosts", "3", "--rails", "2", "--rate", "10mbit", "--", "sh", "-c", "echo I am $RANK of $WORLD_SIZE"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] I am {rank} of 3" for rank in range(3)]


def test_a_host_that_fails_is_named():
    done = command("--", "sh", "-c", "exit $RANK")
    assert (done.returncode, done.stderr) == (1, "agspeed: host 1 ended with 1\n")


def test_it_measures_counts_and_injects():
    options = ["--rate", "20mbit", "--host-rate", "1:10mbit", "--measure", "--counters", "--mptcp"]
    done = command(*options, "--fault", "0:1:0:unplug", "--", "sh", "-c", "sleep 0.5; ip -o link show rail0")
    assert done.returncode == 0, done.stderr
    assert "raw TCP stream" in done.stdout and "MB sent / received" in done.stdout
    lines = {line[:3]: line for line in done.stdout.splitlines() if "rail0@" in line}
    assert "NO-CARRIER" in lines["[1]"] and "NO-CARRIER" not in lines["[0]"]
    assert done.stderr == "agspeed: after 0 s: host 1 rail0 unplug\n"


def test_it_kills_what_runs_on_a_host():
    done = command("--fault", "0:1:kill", "--", "sh", "-c", "[ $RANK = 0 ] || sleep 60")
    assert (done.returncode, done.stderr) == (1, "agspeed: after 0 s: host 1 kill\nagspeed: host 1 ended with -9\n")


def test_a_command_that_takes_too_long_is_ended():
    done = command("--timeout", "0.3", "--", "sleep", "60")
    assert done.returncode == 1 and "hosts [0, 1] were not done after 0.3 s" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "there is no command to run"),
        (["--hosts", "0", "--", "true"], "a bed has 1 to 250 hosts"),
        (["--rate", "fast", "--", "true"], "'fast' is not a rate"),
        (["--rails", "2", "--rate", "1mbit,2mbit,3mbit", "--", "true"], "3 rates were given for 2 rails"),
        (["--host-rate", "1mbit", "--", "true"], "write it as HOST:RATE"),
        (["--fault", "down", "--", "true"], "write it as SECONDS:HOST:RAIL:KIND"),
        (["--timeout", "nan", "--", "true"], "--timeout nan"),
        (["--fault", "nan:0:0:down", "--", "true"], "write a number of seconds"),
        (["--fault", "1:0:x:down", "--", "true"], "write it as SECONDS:HOST:RAIL:KIND"),
        (["--fault", "1:0:0:0:down", "--", "true"], "write it as SECONDS:HOST:RAIL:KIND"),
        (["--fault", "1:0:0:kill", "--", "true"], "'kill' is no fault of a rail; these are: corrupt-in"),
        (["--fault", "1:0:down", "--", "true"], "'down' is no fault of a host; these are: kill"),
        (["--fault", "1:0:1:down", "--", "true"], "hosts 0 to 1 and rails 0 to 0"),
        (["--fault", "1:0:0:corrupt-in", "--", "true"], "like corrupt-in=20"),
        (["--fault", "1:0:0:drop-port=0", "--", "true"], "like drop-port=29500"),
        (["--fault", "1:0:0:rate=x", "--", "true"], "'x' is not a rate"),
    ],
)
def test_a_mistake_is_one_sentence(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert main(["netbed", *arguments]) == 2
    shown = capsys.readouterr().err
    assert said in shown and shown.count("\n") == 1
