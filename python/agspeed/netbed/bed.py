# SPDX-License-Identifier: Apache-2.0
"""The bed: builds hosts, rails and the switch between them, runs commands on the hosts, and removes everything again.

        switch namespace:  bridge of rail0      bridge of rail1
                             |   |   |            |   |   |
        host 0 ─ rail0 ──────┘   |   |            |   |   |     each line a veth pair, shaped where it leaves the host
               ─ rail1 ──────────┼───┼────────────┘   |   |
        host 1 ─ rail0 ──────────┘   |                |   |
               ─ rail1 ─────────────-┼────────────────┘   |
        ...

Lifecycle: a context manager. Leaving it, by any exception or signal that reaches Python, kills every process in the
namespaces and removes the namespaces. After a SIGKILL, the next bed removes the remains.
Thread-safety: use a bed from one thread. Enter it in the main thread if SIGTERM and SIGHUP must clean up.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from agspeed.errors import UserError
from agspeed.netbed import system
from agspeed.netbed.rail import Counters, Rail, bits_per_second, read_counters, shape_command
from agspeed.netbed.tasks import Call, Command, Job, Outcome, Task

__all__ = ["Host", "Netbed", "Rate"]

# One rate for every rail, None for unshaped, or one entry per rail.
Rate = str | None | Sequence[str | None]

_MASTER_PORT = 29500
_MOST_HOSTS = 250
_MOST_RAILS = 64


@dataclass(frozen=True)
class Host:
    """One host, owned by its bed. `rails[k]` is its interface on rail k; `name` is the host name that commands see."""

    index: int
    name: str
    namespace: str
    rails: tuple[Rail, ...]

    def counters(self) -> list[Counters]:
        """The traffic of each rail's interface so far."""
        shown = system.run(system.tool("ip", "iproute2"), "-n", self.namespace, "-s", "-j", "link", "show")
        found = read_counters(shown)
        return [found[rail.name] for rail in self.rails]


class Netbed:
    """`with Netbed(hosts=4, rails=4, rate="200mbit") as bed: bed.run(["hostname"])`."""

    def __init__(
        self,
        hosts: int = 2,
        rails: int = 1,
        rate: Rate = None,
        *,
        host_rates: Mapping[int, Rate] | None = None,
        shape_ingress: bool = False,
        mtu: int = 1500,
    ) -> None:
        """Checks the description; entering the context builds the bed. `host_rates` overrides `rate` for single hosts.

        A shaped rail limits the traffic that leaves the host, and with `shape_ingress` also the traffic that arrives
        (for incast).
        """
        if not (1 <= hosts <= _MOST_HOSTS and 1 <= rails <= _MOST_RAILS and 1280 <= mtu <= 65535):
            raise UserError(
                f"hosts={hosts}, rails={rails}, mtu={mtu}: a bed has 1 to {_MOST_HOSTS} hosts, 1 to {_MOST_RAILS} "
                "rails and an MTU of 1280 to 65535"
            )
        unknown = sorted(set(host_rates or {}) - set(range(hosts)))
        if unknown:
            raise UserError(f"host_rates names hosts {unknown}; the bed has hosts 0 to {hosts - 1}")
        self._rates = [_rate_per_rail((host_rates or {}).get(host, rate), rails) for host in range(hosts)]
        self._mtu = mtu
        self._shape_ingress = shape_ingress
        self._owner = 0
        self._restore_signals: Callable[[], None] = _nothing
        self._jobs: list[Job] = []
        self.hosts: tuple[Host, ...] = ()
        self.scratch = Path()

    def __enter__(self) -> Netbed:
        reason = system.unavailable()
        if reason:
            raise system.NetbedError(reason)
        system.sweep()
        self._prefix = system.new_prefix()
        self._owner = os.getpid()
        try:
            self._restore_signals = _exit_on_signals()
            self.scratch = system.new_scratch(self._prefix)
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process of the bed and removes the bed. Leaving the context calls it; later calls do nothing."""
        if self._owner != os.getpid():  # the bed is closed, or a forked child leaves the context
            return
        with _undisturbed():
            self._owner = 0
            try:
                for job in self._jobs:
                    job.end()
                system.destroy(self._prefix)
            finally:
                self._restore_signals()

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        hosts: Iterable[int] | None = None,
        on_line: Callable[[int, str], None] | None = None,
    ) -> Job:
        """Starts a command on every host, or on the given hosts, and returns at once.

        The command gets this process's environment, then the variables of `environment`, then `env`. `on_line(host,
        line)` gets each line of output as it comes, on a thread for that host.
        """
        if shutil.which(command[0]) is None:
            raise UserError(f"{command[0]!r} is not a program on PATH")
        return self._start(hosts, lambda host: self._command(host, command, env or {}, on_line))

    def run(self, command: Sequence[str], *, timeout_s: float = 60.0, **options: Any) -> list[Outcome]:
        """Calls `start` and waits. Raises NetbedError with the output's end if a host fails or is not done in time."""
        return self.start(command, **options).wait(timeout_s, check=True)

    def start_call(self, function: Callable[..., Any], *arguments: Any, hosts: Iterable[int] | None = None) -> Job:
        """Starts `function(host, *arguments)` in a forked process on every host, or on the given hosts.

        Because of the fork, the function may be a closure, but must not rely on this process's threads. Its result is
        pickled.
        """
        return self._start(hosts, lambda host: Call(host.index, host.namespace, function, (host, *arguments)))

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float = 60.0, **options: Any) -> list[Any]:
        """Calls `start_call` and waits. Returns each host's result, or raises NetbedError with a traceback."""
        job = self.start_call(function, *arguments, **options)
        return [outcome.value for outcome in job.wait(timeout_s, check=True)]

    def environment(self, host: Host) -> dict[str, str]:
        """The variables that torchrun would set for one process per host, and the names of the rails."""
        return {
            "RANK": str(host.index),
            "WORLD_SIZE": str(len(self.hosts)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": self.hosts[0].rails[0].ipv4,
            "MASTER_PORT": str(_MASTER_PORT),
            "NETBED_RAILS": ",".join(rail.name for rail in host.rails),
        }

    def counters(self) -> list[list[Counters]]:
        """The traffic of every host's rails so far: `counters()[host][rail]`."""
        return [host.counters() for host in self.hosts]

    def _command(
        self,
        host: Host,
        command: Sequence[str],
        env: Mapping[str, str],
        on_line: Callable[[int, str], None] | None,
    ) -> Command:
        line = system.on_host(host.namespace, host.name, self._names, command)
        return Command(host.index, line, {**os.environ, **self.environment(host), **env}, on_line)

    @property
    def _names(self) -> Path:
        return self.scratch / "hosts"

    def _start(self, hosts: Iterable[int] | None, make: Callable[[Host], Task]) -> Job:
        self._jobs = [job for job in self._jobs if not job.is_over]
        job = Job()
        self._jobs.append(job)  # before a task starts, so that `close` ends it after an interruption
        for index in range(len(self.hosts)) if hosts is None else hosts:
            job.tasks[index] = make(self.hosts[index])
        return job

    def _build(self) -> None:
        switch = f"{self._prefix}-switch"
        self.hosts = tuple(self._describe(index, switch) for index in range(len(self._rates)))
        self._names.write_text("\n".join(_names_of(self.hosts)) + "\n", encoding="ascii")
        program = system.tool("ip", "iproute2")
        for namespace in (switch, *(host.namespace for host in self.hosts)):
            system.run(program, "netns", "add", namespace)
        # The switch itself must send no IPv6 packets.
        _switch_on(switch, "ipv6/conf/all/disable_ipv6", "ipv6/conf/default/disable_ipv6")
        system.ip(switch, _switch_links(self.hosts, self._mtu))
        for host in self.hosts:
            self._configure(host)
        system.tc(switch, self._switch_shaping())

    def _describe(self, index: int, switch: str) -> Host:
        namespace = f"{self._prefix}-host{index}"
        rails = tuple(
            Rail(
                host_namespace=namespace,
                switch_namespace=switch,
                name=f"rail{k}",
                port=f"h{index}rail{k}",
                ipv4=f"198.18.{k}.{index + 1}",
                ipv6=f"fd61:6773:7065:{k:x}::{index + 1:x}",
                shape_ingress=self._shape_ingress,
                scratch=self.scratch,
            )
            for k in range(len(self._rates[index]))
        )
        return Host(index, f"host{index}", namespace, rails)

    def _configure(self, host: Host) -> None:
        # A link that goes down and up again keeps its IPv4 address; this setting makes it keep its IPv6 address, too.
        _switch_on(host.namespace, "ipv6/conf/all/keep_addr_on_down")
        lines = ["link set lo up"]
        for rail in host.rails:
            lines += [f"addr add {rail.ipv4}/24 dev {rail.name}", f"addr add {rail.ipv6}/64 dev {rail.name} nodad"]
            lines += [f"link set {rail.name} up"]
        system.ip(host.namespace, lines)
        shaping = [f"qdisc add dev {rail.name} clsact" for rail in host.rails]
        for rail, rate in zip(host.rails, self._rates[host.index], strict=True):
            shaping += [shape_command(rail.name, rate)] if rate else []
        system.tc(host.namespace, shaping)

    def _switch_shaping(self) -> list[str]:
        lines = []
        for host in self.hosts:
            for rail, rate in zip(host.rails, self._rates[host.index], strict=True):
                lines.append(f"qdisc add dev {rail.port} clsact")
                if rate and self._shape_ingress:
                    lines.append(shape_command(rail.port, rate))
        return lines


def _rate_per_rail(rate: Rate, rails: int) -> list[str | None]:
    rates = [rate] * rails if rate is None or isinstance(rate, str) else list(rate)
    if len(rates) != rails:
        raise UserError(f"{len(rates)} rates were given for {rails} rails: {', '.join(map(str, rates))}")
    for each in rates:
        if each is not None:
            bits_per_second(each)
    return rates


def _switch_on(namespace: str, *settings: str) -> None:
    """Sets network sysctls to 1. A process that writes them changes them in its own namespace only."""
    paths = " ".join(f"/proc/sys/net/{setting}" for setting in settings)
    script = f"echo 1 | tee {paths} > /dev/null"
    system.run(system.tool("ip", "iproute2"), "netns", "exec", namespace, "sh", "-c", script)


def _names_of(hosts: Sequence[Host]) -> Iterator[str]:
    """The lines of /etc/hosts: a host's name stands for its address on rail 0; all other addresses have names, too."""
    yield "127.0.0.1 localhost"
    yield "::1 localhost"
    for host in hosts:
        for index, rail in enumerate(host.rails):
            name = f"{host.name}-{rail.name}" if index else host.name
            # An IPv6 socket sees the IPv4 address in the last form, and torch's store looks up the name of that form.
            yield from (f"{address} {name}" for address in (rail.ipv4, rail.ipv6, f"::ffff:{rail.ipv4}"))


def _switch_links(hosts: Sequence[Host], mtu: int) -> Iterator[str]:
    for rail in hosts[0].rails:
        yield f"link add {rail.name} mtu {mtu} type bridge"
        yield f"link set {rail.name} up"
    for host in hosts:
        for rail in host.rails:
            yield f"link add {rail.port} mtu {mtu} type veth peer name {rail.name} mtu {mtu} netns {host.namespace}"
            yield f"link set {rail.port} master {rail.name} up"


def _nothing() -> None:
    pass


def _exit_on_signals() -> Callable[[], None]:
    """Makes SIGTERM and SIGHUP unwind the stack as Ctrl-C does, unless the program has its own handlers for them."""
    if threading.current_thread() is not threading.main_thread():
        return _nothing
    taken = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    for number in taken:
        signal.signal(number, leave)

    def restore() -> None:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)

    return restore


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keeps a second Ctrl-C from interrupting the clean-up that the first one began."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
