# SPDX-License-Identifier: Apache-2.0
"""A problem is reported once, at the right place, with a remedy: for a single path, for a rail, or for a host."""

from __future__ import annotations

import itertools

import pytest

from agspeed.netprobe import Finding, HostRecord, Path, Rail, Survey, findings, keys
from agspeed.netprobe.model import PortState

RAILS = ("eth0", "eth1")


def well(num_hosts: int) -> Survey:
    """Returns a survey in which all hosts have checked all others and nothing is wrong."""
    hosts = [
        HostRecord(f"n{h}", tuple(Rail(name, f"10.{k}.0.{h}", 24, 1500) for k, name in enumerate(RAILS)))
        for h in range(num_hosts)
    ]
    paths = [
        Path(
            a.name,
            b.name,
            name,
            name,
            f"10.{k}.0.{b.name[1:]}",
            ports=[PortState(41000), PortState(29650)],
            key=keys.EQUAL,
            round_trip_s=1e-4,
            clock_ahead_s=0.0,
            packet_bytes=1500,
            wanted_packet_bytes=1500,
            bits_per_second=1e9,
        )
        for a, b in itertools.permutations(hosts, 2)
        for k, name in enumerate(RAILS)
    ]
    return Survey(hosts, paths, "join")


def ways(survey: Survey, rail: str | None = None, host: str | None = None, source: str | None = None) -> list[Path]:
    return [
        path
        for path in survey.paths
        if rail in (None, path.rail)
        and (host is None or host in (path.source, path.destination))
        and source in (None, path.source)
    ]


def cut(path: Path) -> None:
    why = "is silent: packets are dropped"
    path.ports = [PortState(state.port, why) for state in path.ports]
    path.problem, path.key = why, ""
    path.round_trip_s = path.clock_ahead_s = path.packet_bytes = path.bits_per_second = None


def only(survey: Survey) -> Finding:
    [found] = findings(survey)
    return found


def test_nothing_wrong_is_one_line() -> None:
    found = only(well(3))
    assert found.status == "ok" and found.detail == "3 of hosts reach each other over 2 rails, with equal job keys"


def test_one_cut_way_between_two_hosts() -> None:
    survey = well(3)
    cut(next(path for path in ways(survey, "eth1") if (path.source, path.destination) == ("n0", "n2")))
    found = only(survey)
    assert found.detail == "eth1 from n0 to n2: 10.1.0.2 is silent: packets are dropped"
    assert found.status == "fail" and "eth1 on n2" in found.remedy
    assert found.remedy.endswith("until then on all hosts export AGSPEED_SOCKET_IFNAME=eth0")


def test_a_rail_that_is_cut_everywhere_is_said_once() -> None:
    survey = well(4)
    for path in ways(survey, "eth1", host="n2"):
        cut(path)
    found = only(survey)
    assert found.detail.startswith("eth1 of n2, with every other host: ") and "and so on, 6 in all" in found.detail
    assert "firewall of eth1 on n2" in found.remedy


def test_a_remedy_names_no_rail_where_none_is_whole() -> None:
    survey = well(3)
    for path in ways(survey, host="n2"):
        cut(path)
    assert all("AGSPEED_SOCKET_IFNAME" not in found.remedy for found in findings(survey))


def test_a_host_with_another_key_is_said_once() -> None:
    survey = well(4)
    for path in ways(survey, host="n3"):
        path.key, path.round_trip_s, path.packet_bytes, path.bits_per_second = keys.DIFFERENT, None, None, None
    found = only(survey)
    assert (found.name, found.detail) == ("job key", "n3 and every other host: the job keys are different")


def test_two_hosts_with_different_keys_are_both_named() -> None:
    survey = well(2)
    for path in survey.paths:
        path.key, path.round_trip_s = keys.DIFFERENT, None
    assert only(survey).detail == "n0 and n1: the job keys are different"


def test_one_port_that_is_blocked() -> None:
    survey = well(3)
    path = ways(survey, "eth0", source="n1")[0]
    path.ports[1] = PortState(29650, "is silent: packets are dropped")
    found = only(survey)
    assert (found.name, found.status) == ("port", "fail")
    assert "port 29650 of 10.0.0.0 is silent: packets are dropped, though port 41000 answers" in found.detail
    assert "firewall of n0" in found.remedy


def test_small_packets_of_one_host_are_its_rail_s_and_explain_its_rate() -> None:
    survey = well(3)
    for path in ways(survey, "eth1", source="n2"):
        path.packet_bytes, path.bits_per_second = 1400, 0.0
    found = only(survey)
    assert found.detail == (
        "eth1 of n2, with every other host: packets of more than 1400 bytes do not arrive, "
        "and the interfaces send up to 1500"
    )
    assert "`ip link set dev eth1 mtu 1400`" in found.remedy


def test_a_slow_way_is_a_warning() -> None:
    survey = well(3)
    ways(survey, "eth0", source="n1")[0].bits_per_second = 2e8
    slow, _ = findings(survey)
    assert slow.status == "warn" and slow.detail == "eth0 from n1 to n0: 200 Mbit/s, and 1000 are usual on eth0"


def test_different_mtus_and_clocks_are_warnings() -> None:
    survey = well(2)
    survey.hosts[0] = HostRecord("n0", (Rail("eth0", "10.0.0.0", 24, 1400), survey.hosts[0].rails[1]))
    for path in ways(survey, source="n0"):
        path.clock_ahead_s = -3.0
    mtu, clock, _ = findings(survey)
    assert (mtu.status, clock.status) == ("warn", "warn")
    assert mtu.detail == "eth0 from n0 to n1: the MTU is 1400 on n0 and 1500 on n1"
    assert clock.detail == "that of n1 is 3.0 s behind that of n0"


def test_an_interface_that_is_down_is_said_to_be() -> None:
    survey = well(2)
    survey.hosts[1] = HostRecord("n1", survey.hosts[1].rails[:1], {"eth1": "it is down"})
    survey.paths = ways(survey, "eth0")
    found = only(survey)
    assert found.detail == "eth1 from n0 to n1: 10.1.0.0/24 has no rail of n1: eth1 there: it is down"
    assert "connect eth1 of n1" in found.remedy


def test_a_rail_paired_with_another_network_in_vain_lacks_its_own() -> None:
    """Happens if eth0 is down here and eth1 is down there: jobs then pair the remaining interfaces."""
    survey = well(2)
    eth0, eth1 = (rail for rail in survey.hosts[0].rails)
    survey.hosts[0] = HostRecord("n0", (eth0,), {"eth1": "it is down"})
    survey.hosts[1] = HostRecord("n1", (survey.hosts[1].rails[1],), {"eth0": "it is down"})
    survey.paths = [Path("n0", "n1", "eth0", "eth1", "10.1.0.1", ports=[PortState(41000)])]
    cut(survey.paths[0])
    found = only(survey)
    assert found.detail == "eth0 from n0 to n1: 10.0.0.0/24 has no rail of n1: eth0 there: it is down"
    assert eth1.name not in found.detail and "connect eth0 of n1" in found.remedy


@pytest.mark.parametrize("num_hosts", [2, 5])
def test_hosts_that_could_not_be_asked_come_first(num_hosts: int) -> None:
    survey = well(num_hosts)
    survey.silent["n9"] = "refuses connections"
    first, *others = findings(survey)
    assert first == Finding("peer", "fail", "n9 refuses connections", "join") and not others


def test_a_path_survives_the_way_to_another_host() -> None:
    path = well(2).paths[0]
    assert Path.from_json(path.to_json()) == path
    for change in ({"round_trip_s": "long"}, {"clock_ahead_s": float("nan")}, {"key": None}, {"ports": [{}]}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            Path.from_json({**path.to_json(), **change})
