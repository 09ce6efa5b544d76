# SPDX-License-Identifier: Apache-2.0
"""The checks of `agspeed doctor --net`: which interfaces carry a job and why, and what on this host slows them down.

The rules of checks.py apply: functions without arguments that yield `Check`s, change nothing and never raise. The
native extension selects the interfaces, so the selection is the same as for a job in this environment.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from agspeed import config
from agspeed.cli.checks import Check
from agspeed.cli.probe import probe
from agspeed.errors import UserError
from agspeed.reporting import format as fmt

__all__ = ["NET_CHECKS", "Interface", "all_interfaces", "selected"]

_SYSTEM = Path("/sys/class/net")
_SETTINGS = Path("/proc/sys/net/ipv4/conf")
_SHARED_MEMORY = Path("/dev/shm")
_LEAST_SHARED_MEMORY = 64 << 20
_MAKE_A_KEY = (
    "once: head -c 32 /dev/urandom | base64 > job.key; chmod 600 job.key; copy it to all hosts; on each: "
    "export AGSPEED_JOB_KEY_FILE=$PWD/job.key"
)
_FAST_MBITS = 10_000
_JUMBO = 9000
_CONTAINER_BRIDGES = ("docker", "virbr")  # same as in comm/topology/interface_selector.cpp
_STRICT = 1


class Interface(NamedTuple):
    """One address of an interface."""

    name: str
    address: str
    prefix_bits: int
    is_up: bool
    is_selected: bool
    reason: str

    @property
    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        return ipaddress.ip_network(f"{self.address}/{self.prefix_bits}", strict=False)

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.address).is_loopback

    @property
    def is_usable(self) -> bool:
        """Whether a job could use it if a setting selected it."""
        is_local = self.is_loopback or ipaddress.ip_address(self.address).is_link_local
        return self.is_up and not is_local and not self.name.startswith(_CONTAINER_BRIDGES)

    @property
    def mtu(self) -> int:
        return _number(_SYSTEM / self.name / "mtu")

    @property
    def mbits(self) -> int:
        """The speed in Mbit/s; 0 if the driver does not report it, as for most virtual interfaces."""
        return max(_number(_SYSTEM / self.name / "speed"), 0)

    @property
    def hardware(self) -> list[str]:
        """The known properties of the adapter: packet size, speed, NUMA node."""
        facts = [f"MTU {self.mtu}"] if self.mtu > 0 else []
        if self.mbits > 0:
            facts.append(f"{self.mbits / 1000:g} Gbit/s")
        node = _number(_SYSTEM / self.name / "device" / "numa_node")
        return [*facts, f"NUMA node {node}"] if node >= 0 else facts


def interfaces() -> Iterator[Check]:
    """Yields a line per interface, and a verdict on the selection."""
    found = probe().get("network")
    if found is None:
        reason = str(probe().get("network_error") or probe().get("native_error", "unknown"))
        yield Check("interfaces", "fail", f"the native extension cannot list them: {reason}", "see `agspeed doctor`")
        return
    for each in all_interfaces():
        taken = "selected" if each.is_selected else "left out"
        yield Check("interface", "ok", f"{_described(each)}: {taken}, {each.reason}")
    wanted = f"{found['variable']}={found['selector']}" if found["variable"] else "no variable set"
    chosen = selected()
    if not chosen:
        detail = f"none can be used ({wanted})"
        yield Check("interfaces", "fail", detail, _use_others())
    elif all(each.is_loopback for each in chosen):
        detail = f"only loopback: ranks on other hosts cannot be reached ({wanted})"
        yield Check("interfaces", "warn", detail, f"none needed on one host; else {_use_others()}")
    else:
        detail = f"jobs use {fmt.plural(len(chosen), 'rail')}: {', '.join(each.name for each in chosen)} ({wanted})"
        yield Check("interfaces", "ok", detail)


def transport() -> Iterator[Check]:
    """Checks that a rank could listen here with the settings of the environment. Yields nothing without interfaces."""
    if "transport" in probe():
        yield Check("transport", "ok", str(probe()["transport"]))
    elif "transport_error" in probe() and selected():
        reason = str(probe()["transport_error"])
        yield Check("transport", "fail", reason, "correct it; `agspeed config` shows all settings and their origins")


def packets() -> Iterator[Check]:
    """Checks that packet sizes are equal, and large on fast links."""
    chosen = [each for each in selected() if not each.is_loopback and each.mtu > 0]
    if not chosen:
        return
    sizes = sorted({each.mtu for each in chosen})
    if len(sizes) > 1:
        shown = ", ".join(f"{each.name} {each.mtu}" for each in chosen)
        small = next(each for each in chosen if each.mtu == sizes[0])
        remedy = f"ip link set dev {small.name} mtu {sizes[-1]} (if its network carries that), on all hosts"
        yield Check("packet size", "warn", f"the rails' MTUs differ: {shown}", remedy)
        return
    fast = [each.name for each in chosen if each.mbits >= _FAST_MBITS and each.mtu < _JUMBO]
    if fast:
        detail = f"MTU {sizes[0]} on {', '.join(fast)}: more packets than such a link needs"
        remedy = f"ip link set dev {fast[0]} mtu {_JUMBO} on all hosts, if the switches carry it"
        yield Check("packet size", "warn", detail, remedy)
        return
    yield Check("packet size", "ok", f"MTU {sizes[0]} on {', '.join(each.name for each in chosen)}")


def one_network() -> Iterator[Check]:
    """Checks for several rails in one IPv4 network, between which the kernel's defaults do not distinguish."""
    chosen = [each for each in selected() if not each.is_loopback and ":" not in each.address]
    pairs = [pair for pair in itertools.combinations(chosen, 2) if pair[0].network.overlaps(pair[1].network)]
    if not pairs:
        if len(chosen) > 1:
            yield Check("networks", "ok", "every rail has a network of its own")
        return
    names = list(dict.fromkeys(each.name for pair in pairs for each in pair))
    strict = [name for name in names if _setting(name, "rp_filter") == _STRICT]
    if strict:
        detail = (
            f"{', '.join(strict)} share a network, and rp_filter=1 drops packets that arrive on one and are routed by "
            "another"
        )
        yield Check("reverse path", "fail", detail, "sysctl -w " + _assignments(strict, "rp_filter", 2))
    mixed = [n for n in names if _setting(n, "arp_ignore") < 1 or _setting(n, "arp_announce") < 2]
    if mixed:
        detail = (
            f"{', '.join(mixed)} share a network and answer ARP for each other: peers' packets may all take one rail"
        )
        remedy = "sysctl -w " + _assignments(mixed, "arp_ignore", 1) + " " + _assignments(mixed, "arp_announce", 2)
        yield Check("ARP", "warn", detail, remedy + "; better, give every rail a network of its own")
    if not strict and not mixed:
        yield Check("networks", "ok", f"{', '.join(names)} share a network, and the kernel keeps them apart")


def shared_memory() -> Iterator[Check]:
    try:
        status = os.statvfs(_SHARED_MEMORY)
    except OSError as error:
        detail = f"{_SHARED_MEMORY} cannot be used: {error.strerror}"
        yield Check("shared memory", "warn", detail, f"mount -t tmpfs -o size=1g tmpfs {_SHARED_MEMORY}")
        return
    total, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    text = f"{_SHARED_MEMORY}: {fmt.size(free)} free of {fmt.size(total)}, for workers of loaders; ranks need none"
    if free < _LEAST_SHARED_MEMORY:
        remedy = "docker run --shm-size=1g; in Kubernetes mount an emptyDir with medium: Memory there"
        yield Check("shared memory", "warn", text, remedy)
        return
    yield Check("shared memory", "ok", text)


def job_key() -> Iterator[Check]:
    try:
        settings = config.resolve()
    except UserError:
        return  # the check `settings` in checks.py reports the reason
    if settings.job_key is not None:
        yield Check("job key", "ok", f"set by {settings.origins['job_key'].name}: ranks authenticate each other")
        return
    path = settings.job_key_file
    if path is None:
        detail = "none: ranks agree on keys through the store, and trust every process that can write to it"
        yield Check("job key", "warn", detail, _MAKE_A_KEY)
        return
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        yield Check(
            "job key", "fail", f"{path} cannot be read: {error.strerror}", f"correct {settings.origins['job_key_file']}"
        )
        return
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield Check("job key", "fail", f"others may read or write {path}: ranks refuse it", f"chmod 600 {path}")
        return
    yield Check("job key", "ok", f"in {path}: ranks authenticate each other")


NET_CHECKS: tuple[Callable[[], Iterator[Check]], ...] = (
    interfaces,
    transport,
    packets,
    one_network,
    shared_memory,
    job_key,
)


def all_interfaces() -> list[Interface]:
    """Returns every address of every interface, in the kernel's order; [] if the extension cannot list them."""
    rows = (probe().get("network") or {}).get("interfaces", [])
    return [Interface(**{field: row[field] for field in Interface._fields}) for row in rows]


def selected() -> list[Interface]:
    """Returns the interfaces that carry a job in this environment (its rails)."""
    return [each for each in all_interfaces() if each.is_selected]


def _use_others() -> str:
    """Returns the remedy for a selection that reaches no other host."""
    usable = list(dict.fromkeys(each.name for each in all_interfaces() if each.is_usable))
    if usable:
        return f"export AGSPEED_SOCKET_IFNAME={','.join(usable)}" + (", or some of these" if len(usable) > 1 else "")
    down = list(dict.fromkeys(each.name for each in all_interfaces() if not each.is_up))
    first = f"connect {' or '.join(down)} and `ip link set dev {down[0]} up`" if down else "add a network interface"
    return f"{first}: none but loopback is up"


def _described(each: Interface) -> str:
    return ", ".join([f"{each.name} {each.address}/{each.prefix_bits}", *each.hardware])


def _setting(name: str, setting: str) -> int:
    """Returns the effective value: the kernel uses the larger one of the interface's value and the value of "all"."""
    return max(_number(_SETTINGS / where / setting, 0) for where in ("all", name))


def _assignments(names: Sequence[str], setting: str, value: int) -> str:
    return " ".join(f"net.ipv4.conf.{name}.{setting}={value}" for name in names)


def _number(path: Path, default: int = -1) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return default
