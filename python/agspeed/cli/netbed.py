# SPDX-License-Identifier: Apache-2.0
"""`agspeed netbed ... -- COMMAND`: runs a command on several hosts of a network that exists only while it runs."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.table import Table

from agspeed.cli.console import make_console
from agspeed.errors import AgspeedError, UserError
from agspeed.netbed import Counters, Netbed, Rail, mptcp, stream, unavailable
from agspeed.netbed.rail import bits_per_second
from agspeed.netbed.system import user_namespace

__all__ = ["add"]

_DESCRIPTION = """\
Runs COMMAND on every host of a network that exists only while it runs: hosts are network namespaces, and each has
RAILS interfaces rail0, rail1, ... whose egress is shaped. COMMAND finds RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
NETBED_RAILS in its environment. Lines of its output start with its host's number. Leaving, also by Ctrl-C, takes
everything away again. Needs root, or a kernel that gives ordinary users namespaces; never touches real interfaces."""

_EXAMPLES = """\
examples:
  agspeed netbed --hosts 4 --rails 4 --rate 200mbit -- python train.py
  agspeed netbed --rails 4 --rate 200mbit,200mbit,100mbit,50mbit --host-rate 1:50mbit --measure -- sleep 0
  GLOO_SOCKET_IFNAME=rail0 agspeed netbed --hosts 4 --rails 4 --rate 200mbit --mptcp --counters -- python train.py
  agspeed netbed --rails 2 --rate 100mbit --fault 5:1:0:drop-in --fault 8:1:0:heal -- python train.py

faults: SECONDS:HOST:RAIL:KIND, KIND one of down, up, unplug, plug, drop-in, drop-out, corrupt-in=N, corrupt-out=N
(one packet in N), heal, rate=RATE. down takes the host's interface down, unplug its carrier.

exit code: 0 if COMMAND ended with 0 on every host, else 1."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "netbed",
        help="run a command on several hosts with shaped links, all on this machine",
        usage="agspeed netbed [options] -- COMMAND ...",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
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
    parser.add_argument("--shape-ingress", action="store_true", help="shape what arrives at a host as well")
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--mptcp", action="store_true", help="let COMMAND's TCP connections over rail0 use all rails")
    parser.add_argument("--measure", action="store_true", help="first print what a raw TCP stream reaches on each rail")
    parser.add_argument("--counters", action="store_true", help="at the end print what each rail has carried")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="AT:HOST:RAIL:KIND", help="see below; repeatable"
    )
    parser.add_argument(
        "--timeout", type=float, default=3600.0, metavar="SECONDS", help="end COMMAND then (default 3600)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise UserError("there is no command to run: agspeed netbed [options] -- COMMAND ...")
    description = Netbed(
        arguments.hosts,
        arguments.rails,
        _rates(arguments.rate),
        host_rates=dict(map(_host_rate, arguments.host_rate)),
        shape_ingress=arguments.shape_ingress,
        mtu=arguments.mtu,
    )
    faults = sorted(_fault(text, arguments) for text in arguments.fault)
    if unavailable() and os.geteuid() != 0:
        again = [sys.executable, "-m", "agspeed", *sys.argv[1:]]
        os.execv(user_namespace(again)[0], user_namespace(again))
    with description as bed:
        if arguments.measure:
            _print_measured(bed)
        over_rails = mptcp(bed) if arguments.mptcp else nullcontext(dict[str, str]())
        with over_rails as env:
            return _run_command(bed, command, env, faults, arguments)


def _run_command(
    bed: Netbed, command: list[str], env: dict[str, str], faults: list[_Fault], arguments: argparse.Namespace
) -> int:
    started = time.monotonic()
    before = bed.counters()
    job = bed.start(command, env=env, on_line=lambda host, line: print(f"[{host}] {line}", flush=True))
    with _injecting(bed, faults):
        outcomes = job.wait(arguments.timeout)
    seconds = time.monotonic() - started
    for outcome in outcomes:
        if outcome.code:
            print(f"agspeed: host {outcome.host} ended with {outcome.code}", file=sys.stderr)
    if arguments.counters:
        carried = [
            [now.since(then) for now, then in zip(*host, strict=True)]
            for host in zip(bed.counters(), before, strict=True)
        ]
        _print_counters(carried, seconds)
    return 1 if any(outcome.code for outcome in outcomes) else 0


_Fault = tuple[float, int, int, str]

# Kind -> what it does to the rail, given the text behind "=".
_KINDS: dict[str, Callable[[Rail, str], None]] = {
    # keep-sorted
    "corrupt-in": lambda rail, n: rail.corrupt("in", int(n)),
    "corrupt-out": lambda rail, n: rail.corrupt("out", int(n)),
    "down": lambda rail, _: rail.down(),
    "drop-in": lambda rail, _: rail.drop("in"),
    "drop-out": lambda rail, _: rail.drop("out"),
    "heal": lambda rail, _: rail.heal(),
    "plug": lambda rail, _: rail.up("switch"),
    "rate": lambda rail, rate: rail.set_rate(rate),
    "unplug": lambda rail, _: rail.down("switch"),
    "up": lambda rail, _: rail.up(),
}


def _fault(text: str, arguments: argparse.Namespace) -> _Fault:
    try:
        at, host, rail, kind = text.split(":")
        fault = (float(at), int(host), int(rail), kind)
    except ValueError:
        raise UserError(f"--fault {text}: write it as SECONDS:HOST:RAIL:KIND, like 5:1:0:down") from None
    name, _, value = kind.partition("=")
    if name not in _KINDS:
        raise UserError(f"--fault {text}: {name!r} is none of {', '.join(_KINDS)}")
    if name == "rate":
        bits_per_second(value)
    elif name.startswith("corrupt") and not value.isdecimal():
        raise UserError(f"--fault {text}: write one packet in how many, like {name}=20")
    if not (fault[1] in range(arguments.hosts) and fault[2] in range(arguments.rails)):
        raise UserError(f"--fault {text}: there are hosts 0 to {arguments.hosts - 1}, rails 0 to {arguments.rails - 1}")
    return fault


@contextmanager
def _injecting(bed: Netbed, faults: list[_Fault]) -> Iterator[None]:
    """Carries the faults out at their times, on a thread, and says so."""
    done = threading.Event()

    def inject() -> None:
        begin = time.monotonic()
        for at, host, rail, kind in faults:
            if done.wait(max(0.0, begin + at - time.monotonic())):
                return
            name, _, value = kind.partition("=")
            try:
                _KINDS[name](bed.hosts[host].rails[rail], value)
                print(f"agspeed: after {at:g} s: host {host} rail{rail} {kind}", file=sys.stderr, flush=True)
            except AgspeedError as error:
                print(f"agspeed: after {at:g} s: {error}", file=sys.stderr, flush=True)

    thread = threading.Thread(target=inject)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _rates(text: str | None) -> str | list[str] | None:
    return text.split(",") if text and "," in text else text


def _host_rate(text: str) -> tuple[int, str | list[str] | None]:
    host, _, rate = text.partition(":")
    if not (host.isdecimal() and rate):
        raise UserError(f"--host-rate {text}: write it as HOST:RATE, like 3:100mbit")
    return int(host), _rates(rate)


def _print_measured(bed: Netbed) -> None:
    table = Table("host", "to", *(rail.name for rail in bed.hosts[0].rails), title="raw TCP stream, Mbit/s of payload")
    flows = stream(bed)
    for host in bed.hosts:
        mine = [flow for flow in flows if flow.source == host.index]
        rates = (f"{flow.bits_per_second / 1e6:.1f}" for flow in mine)
        table.add_row(str(host.index), str(mine[0].destination), *rates)
    make_console().print(table)


def _print_counters(carried: list[list[Counters]], seconds: float) -> None:
    table = Table("host", *(f"rail{k}" for k in range(len(carried[0]))), title=f"MB sent / received in {seconds:.1f} s")
    for host, rails in enumerate(carried):
        cells = (f"{rail.sent_bytes / 1e6:.2f} / {rail.received_bytes / 1e6:.2f}" for rail in rails)
        table.add_row(str(host), *cells)
    make_console().print(table)
