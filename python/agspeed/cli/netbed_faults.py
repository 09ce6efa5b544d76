# SPDX-License-Identifier: Apache-2.0
"""Parses the faults of `agspeed netbed` (when, where, what). A thread injects them while the command runs."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from agspeed.errors import AgspeedError, UserError
from agspeed.netbed import Job, Netbed, Rail
from agspeed.netbed.rail import bits_per_second

__all__ = ["HELP", "Fault", "injecting", "parse"]

HELP = """\
faults: SECONDS:HOST:RAIL:KIND, where KIND is
  down, up                    the host's own interface (its peers see nothing)
  unplug, plug                the other end of the link (the host loses its carrier)
  drop-in, drop-out           packets into or out of the host vanish
  corrupt-in=N, corrupt-out=N one byte changes in one packet of N
  drop-port=N                 packets to TCP port N of the host vanish, as in a firewall
  rate=RATE                   the shaping changes in place
  heal                        ends drop, drop-port and corrupt
or SECONDS:HOST:KIND, where KIND is kill, stop or resume, for the processes on the host"""

# {kind: its effect, given the text after "="}.
_ON_RAILS: dict[str, Callable[[Rail, str], None]] = {
    # keep-sorted
    "corrupt-in": lambda rail, n: rail.corrupt("in", int(n)),
    "corrupt-out": lambda rail, n: rail.corrupt("out", int(n)),
    "down": lambda rail, _: rail.down(),
    "drop-in": lambda rail, _: rail.drop("in"),
    "drop-out": lambda rail, _: rail.drop("out"),
    "drop-port": lambda rail, port: rail.drop_port(int(port)),
    "heal": lambda rail, _: rail.heal(),
    "plug": lambda rail, _: rail.up("switch"),
    "rate": lambda rail, rate: rail.set_rate(rate),
    "unplug": lambda rail, _: rail.down("switch"),
    "up": lambda rail, _: rail.up(),
}
_ON_HOSTS: dict[str, Callable[[Job, int], None]] = {"kill": Job.kill, "resume": Job.resume, "stop": Job.stop}


class Fault(NamedTuple):
    """A fault of a rail, or of the process on a host if `rail` is None."""

    seconds: float
    host: int
    rail: int | None
    kind: str
    value: str


def parse(text: str, hosts: int, rails: int) -> Fault:
    """Parses one fault of the command line. Raises: UserError if a bed of that many hosts and rails cannot have it."""
    try:
        seconds, host, *rail, kind = text.split(":")
        name, _, value = kind.partition("=")
        fault = Fault(float(seconds), int(host), int(*rail) if rail else None, name, value)
    except (TypeError, ValueError):
        raise UserError(f"--fault {text}: write it as SECONDS:HOST:RAIL:KIND, like 5:1:0:down") from None
    if not 0 <= fault.seconds < math.inf:
        raise UserError(f"--fault {text}: write a number of seconds, 0 or more, like 5:1:0:down")
    kinds = _ON_HOSTS if fault.rail is None else _ON_RAILS
    if name not in kinds:
        where = "a host" if fault.rail is None else "a rail"
        raise UserError(f"--fault {text}: {name!r} is no fault of {where}; these are: {', '.join(kinds)}")
    if fault.host not in range(hosts) or (fault.rail or 0) not in range(rails):
        raise UserError(f"--fault {text}: there are hosts 0 to {hosts - 1} and rails 0 to {rails - 1}")
    if name == "rate":
        bits_per_second(value)
    elif name == "drop-port" and (not value.isdecimal() or not 1 <= int(value) <= 65535):
        raise UserError(f"--fault {text}: write a port from 1 to 65535, like {name}=29500")
    elif name.startswith("corrupt") and (not value.isdecimal() or int(value) < 1):
        raise UserError(f"--fault {text}: write one packet in how many, like {name}=20")
    return fault


@contextmanager
def injecting(bed: Netbed, job: Job, faults: Sequence[Fault]) -> Iterator[None]:
    """Injects the faults at their times while the body runs, and reports each on standard error."""
    done = threading.Event()

    def inject() -> None:
        begin = time.monotonic()
        for fault in sorted(faults, key=lambda fault: fault.seconds):
            if done.wait(max(0.0, begin + fault.seconds - time.monotonic())):
                return
            try:
                where = _inject(bed, job, fault)
            except AgspeedError as error:
                where = str(error)
            print(f"agspeed: after {fault.seconds:g} s: {where}", file=sys.stderr, flush=True)

    thread = threading.Thread(target=inject)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _inject(bed: Netbed, job: Job, fault: Fault) -> str:
    if fault.rail is None:
        _ON_HOSTS[fault.kind](job, fault.host)
        return f"host {fault.host} {fault.kind}"
    rail = bed.hosts[fault.host].rails[fault.rail]
    _ON_RAILS[fault.kind](rail, fault.value)
    return f"host {fault.host} {rail.name} {fault.kind} {fault.value}".rstrip()
