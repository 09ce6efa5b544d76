# SPDX-License-Identifier: Apache-2.0
"""`agspeed netbed ... -- COMMAND`: runs a command on several hosts of a network that exists only while it runs."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from rich.table import Table

from agspeed.cli import netbed_faults
from agspeed.cli.console import make_console
from agspeed.errors import UserError
from agspeed.netbed import Counters, Netbed, NetbedError, corruption_unavailable, mptcp, stream, unavailable
from agspeed.netbed.system import user_namespace

__all__ = ["add"]

_DESCRIPTION = """\
Runs COMMAND on every host of a network that exists only while it runs: hosts are network namespaces, and each has
RAILS interfaces rail0, rail1, ... whose egress is shaped. COMMAND finds RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
NETBED_RAILS in its environment. Lines of its output start with its host's number. Leaving, also by Ctrl-C, takes
everything away again. Needs root, or a kernel that gives ordinary users namespaces; never touches real interfaces."""

_EPILOG = """\
examples:
  agspeed netbed --hosts 4 --rails 4 --rate 200mbit -- python train.py
  agspeed netbed --rails 4 --rate 200mbit,200mbit,100mbit,50mbit --host-rate 1:50mbit --measure -- sleep 0
  GLOO_SOCKET_IFNAME=rail0 agspeed netbed --hosts 4 --rails 4 --rate 200mbit --mptcp --counters -- python train.py
  agspeed netbed --rails 2 --rate 100mbit --fault 5:1:0:drop-in --fault 8:1:0:heal -- python train.py

{faults}

exit code: 0 if COMMAND ended with 0 on every host, else 1."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "netbed",
        help="run a command on several hosts with shaped links, all on this machine",
        usage="agspeed netbed [options] -- COMMAND ...",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(faults=netbed_faults.HELP),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--hosts", type=int, default=2, help="how many hosts (default 2)")
    parser.add_argument("--rails", type=int, default=1, help="how many interfaces each host has (default 1)")
    parser.add_argument(
        "--rate", help="200mbit for every rail, or one rate per rail: 200mbit,50mbit (default unshaped)"
    )
    parser.add_argument(
        "--host-rate", action="append", default=[], metavar="HOST:RATE", help="other rates for one host; repeatable"
    )
    parser.add_argument("--shape-ingress", action="store_true", help="also shape packets that arrive at a host")
    parser.add_argument("--mtu", type=int, default=1500, help="bytes per packet (default 1500)")
    parser.add_argument("--mptcp", action="store_true", help="let COMMAND's TCP connections over rail0 use all rails")
    parser.add_argument("--measure", action="store_true", help="first print the rate of a raw TCP stream on each rail")
    parser.add_argument("--counters", action="store_true", help="at the end print the bytes that each rail has carried")
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="FAULT",
        help="break something while COMMAND runs, see below; repeatable",
    )
    parser.add_argument(
        "--timeout", type=float, default=math.inf, metavar="SECONDS", help="end COMMAND then (default: never)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise UserError("there is no command to run: agspeed netbed [options] -- COMMAND ...")
    if not arguments.timeout > 0:
        raise UserError(f"--timeout {arguments.timeout:g}: write a number of seconds above 0")
    description = Netbed(
        arguments.hosts,
        arguments.rails,
        _rates(arguments.rate),
        host_rates=dict(map(_host_rate, arguments.host_rate)),
        shape_ingress=arguments.shape_ingress,
        mtu=arguments.mtu,
    )
    faults = [netbed_faults.parse(text, arguments.hosts, arguments.rails) for text in arguments.fault]
    if unavailable() and os.geteuid() != 0:
        again = [sys.executable, "-m", "agspeed", *sys.argv[1:]]
        os.execv(user_namespace(again)[0], user_namespace(again))
    unable = corruption_unavailable() if any(fault.kind.startswith("corrupt") for fault in faults) else None
    if unable:
        raise NetbedError(unable)
    with description as bed:
        if arguments.measure:
            _print_measured(bed)
        over_rails = mptcp(bed) if arguments.mptcp else nullcontext(dict[str, str]())
        with over_rails as env:
            return _run_command(bed, command, env, faults, arguments)


def _run_command(
    bed: Netbed,
    command: Sequence[str],
    env: Mapping[str, str],
    faults: Sequence[netbed_faults.Fault],
    arguments: argparse.Namespace,
) -> int:
    started = time.monotonic()
    before = bed.counters()
    job = bed.start(command, env=env, on_line=_show_line)
    with netbed_faults.injecting(bed, job, faults):
        outcomes = job.wait(arguments.timeout)
    for outcome in outcomes:
        if outcome.code:
            print(f"agspeed: host {outcome.host} ended with {outcome.code}", file=sys.stderr)
    if arguments.counters:
        _print_counters(before, bed.counters(), time.monotonic() - started)
    return 1 if any(outcome.code for outcome in outcomes) else 0


def _rates(text: str | None) -> str | list[str] | None:
    return text.split(",") if text and "," in text else text


def _host_rate(text: str) -> tuple[int, str | list[str] | None]:
    host, _, rate = text.partition(":")
    if not (host.isdecimal() and rate):
        raise UserError(f"--host-rate {text}: write it as HOST:RATE, like 3:100mbit")
    return int(host), _rates(rate)


def _show_line(host: int, line: str) -> None:
    """Prints a line with a single write, because each host's output has its own thread."""
    sys.stdout.write(f"[{host}] {line}\n")
    sys.stdout.flush()


def _print_measured(bed: Netbed) -> None:
    table = Table("host", "to", *(rail.name for rail in bed.hosts[0].rails), title="raw TCP stream, Mbit/s of payload")
    flows = stream(bed)
    for host in bed.hosts:
        mine = [flow for flow in flows if flow.source == host.index]
        rates = (f"{flow.bits_per_second / 1e6:.1f}" for flow in mine)
        table.add_row(str(host.index), str(mine[0].destination), *rates)
    make_console().print(table)


def _print_counters(before: list[list[Counters]], after: list[list[Counters]], seconds: float) -> None:
    names = (f"rail{rail}" for rail in range(len(before[0])))
    table = Table("host", *names, title=f"MB sent / received in {seconds:.1f} s")
    for host, (earlier, later) in enumerate(zip(before, after, strict=True)):
        carried = [now.since(then) for now, then in zip(later, earlier, strict=True)]
        table.add_row(
            str(host), *(f"{each.sent_bytes / 1e6:.2f} / {each.received_bytes / 1e6:.2f}" for each in carried)
        )
    make_console().print(table)
