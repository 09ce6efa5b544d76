# SPDX-License-Identifier: Apache-2.0
"""`agspeed cluster up`: from hosts with ssh and torch to a training step on all of them.

1. Looks at all hosts, as `agspeed run --check` does. Hosts need no agspeed for that.
2. Installs agspeed's wheel: on all hosts, or on none.
3. Runs one training step over all ranks, and prints the next command.

Threading: the caller's thread.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agspeed.cluster import wheel as wheels
from agspeed.cluster.wheel import Wheel
from agspeed.errors import UserError
from agspeed.launch import arguments as flags
from agspeed.launch import hosts, job
from agspeed.launch.check import look
from agspeed.launch.check.findings import Seen, findings, versions
from agspeed.launch.hosts import Host
from agspeed.launch.install import carried_code
from agspeed.launch.install.installation import Package, install
from agspeed.launch.output import Output
from agspeed.launch.starters import PodExec, Ssh
from agspeed.version import __version__

__all__ = ["add"]

_STEP = ("-m", "agspeed.first_step")
_VERSION = re.compile(r"\d+\.\d+\.\d+(?:\+[a-z0-9.]+)?")
_EPILOG = """\
example:
  agspeed cluster up hosts.txt        hosts.txt has a line for each host, such as: node0 slots=4

All hosts are looked at first: the way by ssh, Python, torch, room, clocks, interfaces and limits. If one of them
cannot be used, each reason is printed, and nothing is changed. pip installs agspeed's wheel into the Python of the same
path as here (or --remote-python), beside its torch. If one host fails, all others take their change back. Hosts that
have the wheel already are left as they are. At last, one training step runs on all ranks.

exit codes: 0 if the step has run, 1 if something has to be corrected, 2 for wrong arguments."""


def add(actions: Any) -> None:
    parser = actions.add_parser(
        "up",
        help="install agspeed on hosts with ssh, and run a training step on all of them",
        description="Installs agspeed on the hosts of a file by ssh, and runs a training step on all of them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("hosts", type=Path, metavar="FILE", help="a line for each host, such as: node0 slots=4")
    flags.add_ways(parser)
    parser.add_argument(
        "--wheel", type=Path, metavar="FILE", help="agspeed's wheel; default: made from the agspeed of this host"
    )
    parser.add_argument(
        "--install-torch",
        metavar="VERSION",
        help="install torch VERSION by pip on hosts without torch; without it, such a host is an error",
    )
    parser.set_defaults(run=_run)


@dataclass(frozen=True)
class _Request:
    hosts: Sequence[Host]
    remote: Ssh | PodExec
    start_timeout_s: float
    torch: str
    """To install on hosts without torch; empty for none."""


def _run(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    request, wheel = _request_of(arguments), _wheel(arguments)
    seen, problems = _look(request, wheel)
    if problems:
        print("Nothing was installed.")
        return 1
    if not _install(request, wheel, seen):
        return 1
    python = request.remote.python if any(not host.is_local for host in request.hosts) else sys.executable
    num_ranks = sum(host.slots for host in request.hosts)
    status = job.run(
        job.Request(
            num_ranks=num_ranks,
            command=[python, *_STEP],
            variables={},
            hosts=request.hosts,
            remote=request.remote,
            start_timeout_s=request.start_timeout_s,
        )
    )
    if status != 0:
        print("agspeed is installed on all hosts, but the training step has failed.")
        return 1
    seconds = time.monotonic() - began
    print(f"{num_ranks} ranks on {len(request.hosts)} hosts have made a training step after {seconds:.0f} s. Next:\n")
    print(f"    {_next(arguments, python)}\n")
    return 0


def _request_of(arguments: argparse.Namespace) -> _Request:
    """Raises: UserError for wrong arguments."""
    named, remote = hosts.read(arguments.hosts, ""), flags.remote_of(arguments)
    torch = arguments.install_torch or ""
    if torch and not _VERSION.fullmatch(torch):
        raise UserError(f"--install-torch {torch[:60]!r}: write a version of torch, such as 2.15.0.")
    if remote.python != sys.executable and (own := [host.name for host in named if host.is_local]):
        raise UserError(
            f"{arguments.hosts}: {own[0]} is this host, which runs {sys.executable}; leave --remote-python out, or run "
            "agspeed cluster up with that interpreter."
        )
    return _Request(named, remote, flags.seconds_of("--start-timeout", arguments.start_timeout), torch)


def _wheel(arguments: argparse.Namespace) -> Wheel:
    return wheels.of_this_host() if arguments.wheel is None else wheels.of_file(arguments.wheel)


def _look(request: _Request, wheel: Wheel) -> tuple[Sequence[Seen], list[str]]:
    """Prints what the hosts are like. Returns: the hosts that have answered, and the reasons to change nothing."""
    with Output(1, None, False) as output:
        looks = look.look_at(request.hosts, request.remote, request.start_timeout_s, output, carried_code.packed())
    own = [
        Seen(each.name, replace(each.facts, torch=each.facts.torch or request.torch), each.ahead_s)
        for each in looks.seen
    ]
    reasons = [*looks.problems, *_without_torch(own, request.remote.python)]
    whole = [each for each in own if each.facts.torch]
    reasons += [*versions(whole), *wheels.mismatches(wheel, own)]
    remarks = findings(whole, sum(host.slots for host in request.hosts), []) if whole else []
    print("\n".join(look.table(looks.seen, has_agspeed=False)))
    for sentence in dict.fromkeys([*reasons, *remarks]):
        print(f"! {sentence}")
    return looks.seen, reasons


def _without_torch(seen: Sequence[Seen], python: str) -> Iterator[str]:
    known = next((each.facts.torch for each in seen if each.facts.torch), "VERSION")
    for each in seen:
        if not each.facts.torch:
            yield f"host {each.name} has no torch in {python}; install it there, or give --install-torch {known}."


def _install(request: _Request, wheel: Wheel, seen: Sequence[Seen]) -> bool:
    """Installs the wheel on all other hosts. Returns: whether all have it; if not, it has printed why."""
    others = [host for host in request.hosts if not host.is_local]
    torches = {each.name: request.torch for each in seen if not each.facts.torch}
    result = install(others, request.remote, Package(wheel.name, wheel.content, torches), request.start_timeout_s)
    for sentence in result.problems:
        print(f"! {sentence}")
    if result.problems:
        kept = f"Only {', '.join(result.changed)} kept it; run" if result.changed else "No host has kept a change; run"
        print(f"{kept} this command again after you have corrected that.")
        return False
    if result.changed:
        print(f"agspeed {__version__} was installed on {', '.join(result.changed)}.")
    else:
        print(f"agspeed {__version__} was there already.")
    return True


def _next(arguments: argparse.Namespace, python: str) -> str:
    """Returns the command that starts a user's script on these hosts."""
    words = ["agspeed", "run", "--hostfile", str(arguments.hosts)]
    if arguments.ssh_port is not None:
        words += ["--ssh-port", str(arguments.ssh_port)]
    if arguments.ssh_identity_file is not None:
        words += ["--ssh-identity-file", str(arguments.ssh_identity_file)]
    if arguments.remote_python is not None:
        words += ["--remote-python", arguments.remote_python]
    return shlex.join([*words, "python" if shutil.which("python") == python else python, "train.py"])
