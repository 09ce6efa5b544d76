# SPDX-License-Identifier: Apache-2.0
"""`agspeed doctor --net` explains every interface, and names a remedy for everything that slows rails down."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agspeed.cli import checks, net_checks


class Host:
    """A host's interfaces and kernel settings, as files in a folder of the test."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self.network: dict[str, Any] = {"variable": "", "selector": "", "interfaces": []}
        self.answer: dict[str, Any] = {"network": self.network}
        monkeypatch.setattr(net_checks, "probe", lambda: self.answer)
        monkeypatch.setattr(net_checks, "_SYSTEM", root / "sys")
        monkeypatch.setattr(net_checks, "_SETTINGS", root / "conf")
        for name in ("AGSPEED_JOB_KEY", "AGSPEED_JOB_KEY_FILE"):
            monkeypatch.delenv(name, raising=False)

    def add(
        self,
        name: str,
        address: str,
        bits: int = 24,
        *,
        selected: bool = True,
        up: bool = True,
        mtu: int = 1500,
        mbits: int | None = None,
    ) -> None:
        row = {"name": name, "address": address, "prefix_bits": bits, "is_up": up, "is_selected": selected}
        self.network["interfaces"].append({**row, "reason": "for a test"})
        self._write(f"sys/{name}/mtu", mtu)
        if mbits is not None:
            self._write(f"sys/{name}/speed", mbits)

    def set(self, name: str, setting: str, value: int) -> None:
        self._write(f"conf/{name}/{setting}", value)

    def _write(self, path: str, value: int) -> None:
        file = self._root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_a_transport_that_cannot_be_opened_fails_with_its_reason(host: Host) -> None:
    host.answer["transport_error"] = 'AGSPEED_COMM_MODE="secret" is unknown'
    assert not list(net_checks.transport()), "interfaces() says that none can be used"
    host.add("eth0", "10.0.0.5")
    (check,) = net_checks.transport()
    assert (check.status, check.detail) == ("fail", 'AGSPEED_COMM_MODE="secret" is unknown') and check.remedy
    host.answer["transport"] = "opportunistic over 1 rail: 10.0.0.5 (eth0)"
    (check,) = net_checks.transport()
    assert (check.status, check.detail) == ("ok", host.answer["transport"])


def test_every_interface_is_explained(host: Host) -> None:
    host.add("eth0", "10.0.0.5", mtu=9000, mbits=25_000)
    host.add("docker0", "172.17.0.1", 16, selected=False)
    first, second, verdict = net_checks.interfaces()
    assert first.detail == "eth0 10.0.0.5/24, MTU 9000, 25 Gbit/s: selected, for a test"
    assert second.detail == "docker0 172.17.0.1/16, MTU 1500: left out, for a test"
    assert (verdict.status, verdict.detail) == ("ok", "jobs use 1 rail: eth0 (no variable set)")


def test_loopback_alone_is_a_warning(host: Host) -> None:
    host.add("lo", "127.0.0.1", 8)
    host.network |= {"variable": "GLOO_SOCKET_IFNAME", "selector": "lo"}
    verdict = list(net_checks.interfaces())[-1]
    assert verdict.status == "warn" and "GLOO_SOCKET_IFNAME=lo" in verdict.detail
    assert list(net_checks.packets()) == list(net_checks.one_network()) == []


def test_a_selection_of_nothing_fails(host: Host) -> None:
    host.add("eth0", "10.0.0.5", selected=False)
    host.network |= {"variable": "AGSPEED_SOCKET_IFNAME", "selector": "wlan"}
    verdict = list(net_checks.interfaces())[-1]
    assert verdict.status == "fail" and "AGSPEED_SOCKET_IFNAME=wlan" in verdict.detail
    assert verdict.remedy == "export AGSPEED_SOCKET_IFNAME=eth0"


def test_a_remedy_names_interfaces_that_can_be_used_only(host: Host) -> None:
    for name, address in (
        ("lo", "127.0.0.1"),
        ("eth0", "10.0.0.5"),
        ("eth2", "169.254.0.7"),
        ("docker0", "172.17.0.1"),
        ("eth3", "10.3.0.5"),
    ):
        host.add(name, address, selected=False)
    host.add("eth1", "10.1.0.5", selected=False, up=False)
    host.network |= {"variable": "AGSPEED_SOCKET_IFNAME", "selector": "wlan"}
    assert list(net_checks.interfaces())[-1].remedy == "export AGSPEED_SOCKET_IFNAME=eth0,eth3, or some of these"
    host.add("lo", "127.0.0.1", 8)
    assert list(net_checks.interfaces())[-1].remedy.endswith(
        "else export AGSPEED_SOCKET_IFNAME=eth0,eth3, or some of these"
    )


def test_where_no_interface_is_up_the_remedy_is_to_bring_one_up(host: Host) -> None:
    host.add("lo", "127.0.0.1", selected=False)
    host.add("eth1", "10.1.0.5", selected=False, up=False)
    remedy = list(net_checks.interfaces())[-1].remedy
    assert remedy == "connect eth1 and `ip link set dev eth1 up`: none but loopback is up"


def test_a_wrong_selector_is_reported(host: Host) -> None:
    host.answer.clear()
    host.answer["network_error"] = "UserError: 'net/8' is not a network"
    [verdict] = net_checks.interfaces()
    assert verdict.status == "fail" and "'net/8' is not a network" in verdict.detail


@pytest.mark.parametrize(
    ("sizes", "mbits", "status", "words"),
    [
        ((9000, 9000), 25_000, "ok", "MTU 9000 on eth0, eth1"),
        ((1500, 1500), 1_000, "ok", "MTU 1500"),
        ((1500, 1500), 25_000, "warn", "ip link set dev eth0 mtu 9000"),
        ((9000, 1500), 25_000, "warn", "ip link set dev eth1 mtu 9000"),
    ],
)
def test_packet_sizes(host: Host, sizes: tuple[int, int], mbits: int, status: str, words: str) -> None:
    for index, mtu in enumerate(sizes):
        host.add(f"eth{index}", f"10.{index}.0.5", mtu=mtu, mbits=mbits)
    [check] = net_checks.packets()
    assert check.status == status and words in check.detail + check.remedy


def test_rails_of_one_network(host: Host) -> None:
    host.add("eth0", "10.0.0.5", 16)
    host.add("eth1", "10.0.1.5", 16)
    host.set("all", "rp_filter", 1)
    reverse, arp = net_checks.one_network()
    assert reverse.status == "fail"
    assert reverse.remedy == "sysctl -w net.ipv4.conf.eth0.rp_filter=2 net.ipv4.conf.eth1.rp_filter=2"
    assert arp.status == "warn" and "net.ipv4.conf.eth1.arp_announce=2" in arp.remedy
    host.set("eth0", "rp_filter", 2)
    host.set("all", "arp_ignore", 1)
    host.set("all", "arp_announce", 2)
    [reverse] = net_checks.one_network()
    assert "eth1" in reverse.detail and "eth0" not in reverse.detail
    host.set("eth1", "rp_filter", 2)
    assert [check.status for check in net_checks.one_network()] == ["ok"]


def test_rails_of_different_networks_are_fine(host: Host) -> None:
    host.set("all", "rp_filter", 1)
    host.add("eth0", "10.0.0.5")
    host.add("eth1", "10.1.0.5")
    assert [check.status for check in net_checks.one_network()] == ["ok"]


@pytest.mark.parametrize(("free_mib", "status"), [(16, "warn"), (512, "ok")])
def test_shared_memory(monkeypatch: pytest.MonkeyPatch, free_mib: int, status: str) -> None:
    size = SimpleNamespace(f_blocks=1 << 20, f_frsize=1 << 10, f_bavail=free_mib << 10)
    monkeypatch.setattr(os, "statvfs", lambda _: size)
    [check] = net_checks.shared_memory()
    assert check.status == status and f"{free_mib}" in check.detail
    assert ("--shm-size" in check.remedy) is (status == "warn")


def test_a_short_job_key(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGSPEED_JOB_KEY", "short")
    assert not list(net_checks.job_key()), "the settings say what is wrong with it"
    [check] = checks.settings()
    assert check.status == "fail" and "at least 16 bytes" in check.detail and "short" not in check.detail


def test_the_job_key(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [check] = net_checks.job_key()
    assert check.status == "warn" and "AGSPEED_JOB_KEY_FILE" in check.remedy
    key = tmp_path / "job.key"
    monkeypatch.setenv("AGSPEED_JOB_KEY_FILE", str(key))
    [check] = net_checks.job_key()
    assert check.status == "fail"
    key.write_text("0123456789abcdef")
    key.chmod(0o644)
    [check] = net_checks.job_key()
    assert check.status == "fail" and check.remedy == f"chmod 600 {key}"
    key.chmod(0o600)
    [check] = net_checks.job_key()
    assert check.status == "ok"


@pytest.mark.slow
def test_the_doctor_checks_the_network_only_on_request(host: Host, agspeed: Any, monkeypatch: Any) -> None:
    host.add("eth0", "10.0.0.5")
    names = {check["name"] for check in json.loads(agspeed("doctor", "--net", "--json").out)["checks"]}
    assert names >= {"interface", "interfaces", "packet size", "shared memory", "job key"}
    assert "interface" not in {check["name"] for check in json.loads(agspeed("doctor", "--json").out)["checks"]}
