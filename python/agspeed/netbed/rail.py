# SPDX-License-Identifier: Apache-2.0
"""One host's interface on one rail: its addresses, counters, shaping, and the faults that tests inject.

A rail's other end is a port of the rail's bridge in the switch namespace. Faults act where packets arrive: "in" at the
host's interface, "out" at the switch port, which is directly behind the host. A drop at the sender's own egress would
inform its TCP about the loss, which no real network does.
Thread-safety: calls on different rails may run at the same time.
"""

from __future__ import annotations

import functools
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from agspeed.errors import UserError
from agspeed.netbed import system

__all__ = [
    # keep-sorted
    "BURST_BYTES",
    "Counters",
    "Rail",
    "bits_per_second",
    "corruption_unavailable",
    "read_counters",
    "shape_command",
]

BURST_BYTES = 128 * 1024  # the bytes that a shaped link lets through at once after a pause
_ETHERNET_BYTES = 14
_QUEUE_MS = 20
_FAULT_SOURCE = Path(__file__).with_name("fault.c")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}

Direction = Literal["in", "out"]
Place = Literal["host", "switch"]
_PLACES: tuple[Place, Place] = ("host", "switch")


class Counters(NamedTuple):
    """The traffic of an interface, headers included. Subtract an earlier reading to count an interval."""

    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int

    def since(self, earlier: Counters) -> Counters:
        return Counters(*(now - before for now, before in zip(self, earlier, strict=True)))


def bits_per_second(rate: str) -> int:
    """Parses a rate like "200mbit". Raises UserError for anything that is not a positive rate."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", rate)
    bits = round(float(match[1]) * _UNITS[match[2]]) if match else 0
    if bits < 1:
        raise UserError(f"{rate!r} is not a rate; write it like 200mbit, 1gbit or 512kbit")
    return bits


@dataclass(frozen=True)
class Rail:
    """An interface of one host, which owns it; valid while the bed is open. `name` is its name on the host."""

    host_namespace: str
    switch_namespace: str
    name: str
    port: str
    ipv4: str
    ipv6: str
    shape_ingress: bool
    scratch: Path

    @property
    def subnet(self) -> str:
        """The rail's IPv4 subnet, the same on every host."""
        return f"{self.ipv4.rsplit('.', 1)[0]}.0/24"

    def set_rate(self, rate: str | None) -> None:
        """Changes the shaping and keeps connections and queued packets; None removes the shaping."""
        for place in _PLACES if self.shape_ingress else _PLACES[:1]:
            namespace, device = self._end(place)
            system.tc(namespace, [shape_command(device, rate)])

    def down(self, at: Place = "host") -> None:
        """Takes the link down. At the host, peers do not notice it; at the switch, the host loses its carrier."""
        namespace, device = self._end(at)
        system.ip(namespace, [f"link set {device} down"])

    def up(self, at: Place = "host") -> None:
        namespace, device = self._end(at)
        system.ip(namespace, [f"link set {device} up"])

    def drop(self, direction: Direction, one_in: int = 1) -> None:
        """Silently drops packets that go into or out of the host: every packet, or each with probability 1/one_in.

        With segmentation offload one "packet" carries up to 64 KiB, here and in `corrupt`.
        """
        self._add_filter(direction, f"bpf da bytecode '{_drop_bytecode(one_in)}'")

    def corrupt(self, direction: Direction, one_in: int) -> None:
        """Changes one random byte of the TCP or UDP payload, in each packet with probability 1/one_in.

        The checksum does not change, and such a link does not check it, so plain TCP delivers the wrong byte. Raises
        NetbedError if `corruption_unavailable` returns a reason.
        """
        compiled = self.scratch / f"fault_{_checked(one_in)}.o"
        if not compiled.exists():
            _compile_fault(compiled, one_in)
        self._add_filter(direction, _corrupting(compiled))

    def drop_larger_than(self, mtu: int) -> None:
        """Makes the switch silently drop packets of more than `mtu` bytes from this host.

        From now on, the host itself segments its data, so it sends packets of the size that a wire would carry.
        """
        system.ip(self.host_namespace, [f"link set {self.name} gso_max_segs 1"])
        self._add_filter(
            "out", f"bpf da bytecode '4,128 0 0 0,37 0 1 {mtu + _ETHERNET_BYTES},6 0 0 2,6 0 0 4294967295,'"
        )

    def drop_port(self, port: int) -> None:
        """Silently drops IPv4 packets to a TCP port of the host, as a firewall does."""
        if not 1 <= port <= 65535:
            raise UserError(f"port {port} is not possible: ports are 1 to 65535")
        self._add_filter("in", f"bpf da bytecode '{_drop_port_bytecode(port)}'")

    def heal(self) -> None:
        """Ends every `drop`, `drop_larger_than`, `drop_port` and `corrupt` on this rail."""
        for place in _PLACES:
            namespace, device = self._end(place)
            system.tc(namespace, [f"filter del dev {device} ingress"])

    def counters(self) -> Counters:
        shown = system.run(
            system.tool("ip", "iproute2"), "-n", self.host_namespace, "-s", "-j", "link", "show", self.name
        )
        return read_counters(shown)[self.name]

    def _end(self, place: Place) -> tuple[str, str]:
        """The namespace and the name of the link's interface at a place."""
        return (self.host_namespace, self.name) if place == "host" else (self.switch_namespace, self.port)

    def _add_filter(self, direction: Direction, what: str) -> None:
        namespace, device = self._end("host" if direction == "in" else "switch")
        system.tc(namespace, [f"filter add dev {device} ingress {what}"])


@functools.cache
def corruption_unavailable() -> str | None:
    """Why `Rail.corrupt` cannot work here, in one sentence; None if it can. Each process tries it once."""
    try:
        with system.trial() as (namespace, scratch):
            _compile_fault(scratch / "fault.o", 1)
            system.tc(namespace, [f"filter add dev probe ingress {_corrupting(scratch / 'fault.o')}"])
    except system.NetbedError as error:
        return f"packets cannot be corrupted here: {error}"
    return None


def read_counters(shown: str) -> dict[str, Counters]:
    """Returns the counters by interface name, from the text of `ip -s -j link show`."""
    found = {}
    for link in json.loads(shown):
        sent, received = link["stats64"]["tx"], link["stats64"]["rx"]
        found[link["ifname"]] = Counters(sent["bytes"], received["bytes"], sent["packets"], received["packets"])
    return found


def shape_command(device: str, rate: str | None) -> str:
    """The `tc` line that shapes a device's egress, or removes its shaping."""
    if rate is None:
        return f"qdisc del dev {device} root"
    return (
        f"qdisc replace dev {device} root tbf rate {bits_per_second(rate)}bit burst {BURST_BYTES} latency {_QUEUE_MS}ms"
    )


def _checked(one_in: int) -> int:
    if one_in < 1:
        raise UserError(f"one_in={one_in} is not possible: a probability 1/one_in needs at least 1")
    return one_in


def _compile_fault(product: Path, one_in: int) -> None:
    headers = f"-I/usr/include/{os.uname().machine}-linux-gnu"
    options = ["-O2", "-g", "-target", "bpf", headers, f"-DONE_IN={one_in}u"]
    system.run(system.tool("clang", "clang"), *options, "-c", str(_FAULT_SOURCE), "-o", str(product))


def _corrupting(compiled: Path) -> str:
    return f"bpf da obj {compiled} sec tc_corrupt"


def _drop_port_bytecode(port: int) -> str:
    """A BPF program that returns "drop" (2) for IPv4 TCP packets to that port, else "unspecified" (-1)."""
    ethertype, protocol = "40 0 0 12,21 0 6 2048", "48 0 0 23,21 0 4 6"
    destination = f"177 0 0 14,72 0 0 16,21 0 1 {port}"  # behind an IP header of any length
    return f"9,{ethertype},{protocol},{destination},6 0 0 2,6 0 0 4294967295,"


def _drop_bytecode(one_in: int) -> str:
    """A classic BPF program, which needs no compiler and no privilege beyond the namespace.

    It loads a random word. Above 2^32 / one_in it returns "unspecified, go on" (-1), else "drop" (2).
    """
    threshold = min(2**32 // _checked(one_in), 2**32 - 1)
    random_word = 0xFFFFF000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM
    return f"4,32 0 0 {random_word},37 0 1 {threshold},6 0 0 4294967295,6 0 0 2,"
