# SPDX-License-Identifier: Apache-2.0
"""The test bed itself: what it builds, that nothing of it is left behind, and that each fault works."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from agspeed import netbed
from agspeed.errors import UserError
from agspeed.netbed import system
from tests.fault.conftest import MakeNetbed
from tests.python.support.processes import left_after_a_while

NAMED = Path("/var/run/netns")
ETHERNET_AND_IP_TCP = 1514 / 1448


def left_behind(pid: int) -> list[str]:
    """Returns the namespaces and scratch folders of a process."""
    named = [path.name for path in NAMED.glob(f"agspeed-{pid}-*")] if NAMED.is_dir() else []
    return named + [path.name for path in Path(tempfile.gettempdir()).glob(f"agspeed-{pid}-*")]


def reaches(bed: netbed.Netbed, source: int, address: str) -> bool:
    """True if a host gets an answer from an address. The answer is a refusal, because no process listens there."""

    def knock(_: netbed.Host) -> bool:
        try:
            socket.create_connection((address, 9), timeout=0.3).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True

    return bed.call(knock, hosts=[source])[0]


def reaches_soon(bed: netbed.Netbed, source: int, address: str) -> bool:
    """Like `reaches`, but tries for a while: a failed address resolution is cached at first."""
    return any(reaches(bed, source, address) for _ in range(20))


def counted(bed: netbed.Netbed, host: int, protocol: str, name: str) -> int:
    """Returns one of the kernel's counters of a host, such as Tcp OutRsts."""
    lines = bed.run(["cat", "/proc/net/snmp"], hosts=[host])[0].output.splitlines()
    names, values = (line.split() for line in lines if line.startswith(f"{protocol}:"))
    return int(values[names.index(name)])


def shaped_rate(namespace: str, device: str) -> int:
    """Returns the bits per second to which the kernel limits the traffic that leaves an interface."""
    shown = system.run(system.tool("tc", "iproute2"), "-n", namespace, "-j", "qdisc", "show", "dev", device)
    [options] = [each["options"] for each in json.loads(shown) if each["kind"] == "tbf"]
    return int(8 * options["rate"])


def wire_rate(flows: list[netbed.Flow]) -> float:
    """Returns the bits per second of the flows together, headers included. A busy machine makes them fewer."""
    return sum(flow.bits_per_second for flow in flows) * ETHERNET_AND_IP_TCP


# --- the bed ----------------------------------------------------------------------------------------------------------


def test_hosts_meet_on_every_rail_by_ipv4_and_ipv6(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=3, rails=2)
    for rail in bed.hosts[2].rails:
        assert reaches(bed, 0, rail.ipv4) and reaches(bed, 1, rail.ipv6), rail


def test_nothing_is_left_after_use_or_an_exception(make_netbed: MakeNetbed) -> None:
    before = left_behind(os.getpid())
    bed = make_netbed(hosts=2, rails=2, rate="10mbit")
    bed.start([sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '60'], start_new_session=True)"])
    assert left_behind(os.getpid()) != before
    bed.close()
    assert left_behind(os.getpid()) == before

    with pytest.raises(ZeroDivisionError), netbed.Netbed(hosts=2):
        raise ZeroDivisionError
    assert left_behind(os.getpid()) == before


HOLDS_A_BED = """
import signal, sys, time
from agspeed.netbed import Netbed
signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells turn off for what runs in the background
with Netbed(hosts=2, rails=2, rate="10mbit") as bed:
    jobs = bed.start(["sleep", "60"]), bed.start_call(time.sleep, 60)
    print(*(task.pid for job in jobs for task in job.tasks.values()), flush=True)
    time.sleep(60)
"""


def interrupted(number: int) -> tuple[int, list[int]]:
    """Returns the id of a process that held a bed and was ended by this signal, and the ids of its tasks."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDS_A_BED], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with holder:
        assert holder.stdout is not None
        tasks = [int(word) for word in holder.stdout.readline().split()]
        assert len(tasks) == 4
        holder.send_signal(number)
        assert holder.wait(20) != 0
    return holder.pid, tasks


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(make_netbed: MakeNetbed, number: int) -> None:
    pid, tasks = interrupted(number)
    assert left_behind(pid) == [] and left_after_a_while(tasks) == []


@pytest.mark.slow
def test_the_next_bed_removes_what_a_killed_process_left(make_netbed: MakeNetbed) -> None:
    pid, tasks = interrupted(signal.SIGKILL)
    assert left_behind(pid) != []
    assert left_after_a_while(tasks) == [], "tasks outlive the process that started them"
    make_netbed(hosts=1)
    assert left_behind(pid) == []


def test_a_command_does_not_begin_after_the_process_that_started_it(make_netbed: MakeNetbed, tmp_path: Path) -> None:
    bed = make_netbed(hosts=1)
    line = system.on_host(bed.hosts[0].namespace, "host0", bed.scratch / "hosts", ["touch", str(tmp_path / "begun")])
    in_between = ["sh", "-c", '"$@"; exit 3', "sh", *line]  # the command's parent is this shell
    assert subprocess.run(in_between, check=False, timeout=60).returncode == 3
    assert not (tmp_path / "begun").exists()
    assert subprocess.run(line, check=False, timeout=60).returncode == 0
    assert (tmp_path / "begun").exists()


@pytest.mark.parametrize(
    "description",
    [
        {"rate": "200"},
        {"rate": "0mbit"},
        {"rails": 2, "rate": ["1mbit"]},
        {"hosts": 0},
        {"rails": 1000},
        {"hosts": 2, "host_rates": {2: "1mbit"}},
    ],
)
def test_an_impossible_description_is_refused(description: dict) -> None:
    with pytest.raises(UserError):
        netbed.Netbed(**description)


# --- commands and functions -------------------------------------------------------------------------------------------


def test_commands_get_the_environment_of_a_rank(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=2, rails=2)
    outcomes = bed.run(["sh", "-c", "echo $RANK $WORLD_SIZE $MASTER_ADDR $NETBED_RAILS $MORE"], env={"MORE": "x"})
    assert [outcome.output for outcome in outcomes] == [f"{rank} 2 198.18.0.1 rail0,rail1 x\n" for rank in range(2)]


def test_hosts_have_names_that_all_hosts_know(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=2, rails=2)
    outcomes = bed.run(["sh", "-c", "hostname; getent ahostsv4 host1 | head -1; getent hosts 198.18.1.1"])
    for outcome in outcomes:
        own, other, back = outcome.output.splitlines()
        assert own == bed.hosts[outcome.host].name == f"host{outcome.host}"
        assert other.split()[0] == bed.hosts[1].rails[0].ipv4
        assert back.split()[1] == "host0-rail1"


STORE = """
import os
from torch.distributed import TCPStore
rank = int(os.environ["RANK"])
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, rank == 0)
store.add("here", 1)
while store.add("here", 0) < 2: pass
"""


@pytest.mark.slow
def test_the_store_of_torch_has_nothing_to_warn_of(make_netbed: MakeNetbed) -> None:
    pytest.importorskip("torch")
    outcomes = make_netbed(hosts=2).run([sys.executable, "-c", STORE], timeout_s=120)
    assert [outcome.output for outcome in outcomes] == ["", ""]


def test_exit_codes_and_output_are_collected(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=2)
    seen: list[tuple[int, str]] = []
    job = bed.start(["sh", "-c", "echo out; echo err >&2; exit $RANK"], on_line=lambda *line: seen.append(line))
    assert [(outcome.code, outcome.output) for outcome in job.wait()] == [(0, "out\nerr\n"), (1, "out\nerr\n")]
    assert sorted(seen) == [(0, "err"), (0, "out"), (1, "err"), (1, "out")]
    with pytest.raises(netbed.NetbedError, match="host 1 ended with 1, its output ends with:\nout\nerr"):
        bed.run(["sh", "-c", "echo out; echo err >&2; exit $RANK"])
    with pytest.raises(UserError, match="'no-such-program' is not a program"):
        bed.run(["no-such-program"])


def test_a_job_that_takes_too_long_is_ended_and_named(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=3)
    job = bed.start(["sh", "-c", "[ $RANK = 1 ] || sleep 60"])
    with pytest.raises(netbed.NetbedError, match=r"hosts \[0, 2\] were not done after 0.5 s"):
        job.wait(0.5)
    assert not any(Path(f"/proc/{task.pid}").exists() for task in job.tasks.values())


def test_functions_run_inside_their_hosts(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=3)
    names = bed.call(lambda host, suffix: (host.index, len(socket.if_nameindex()), suffix), "!")
    assert names == [(0, 2, "!"), (1, 2, "!"), (2, 2, "!")]
    with pytest.raises(netbed.NetbedError, match=r"(?s)host 1 ended with 1.*ZeroDivisionError"):
        bed.call(lambda host: 1 / (host.index - 1))
    assert len(bed.call(lambda _: bytes(1 << 20))[0]) == 1 << 20


@pytest.mark.parametrize("kind", ["command", "function"])
def test_a_task_is_killed_stopped_and_resumed(make_netbed: MakeNetbed, kind: str) -> None:
    bed = make_netbed(hosts=3)
    if kind == "command":
        job = bed.start(["sh", "-c", "[ $RANK = 2 ] || exec sleep 3"])
    else:
        job = bed.start_call(lambda host: time.sleep(0 if host.index == 2 else 3))
    job.kill(0)
    job.stop(1)
    assert job.tasks[2].wait(20) is not None
    assert job.tasks[1].wait(0.2) is None
    job.resume(1)
    assert [outcome.code for outcome in job.wait()] == [-9, 0, 0]


# --- shaping and counters ---------------------------------------------------------------------------------------------


def test_rails_carry_at_most_their_rates(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=2, rails=2, rate=["40mbit", "20mbit"], host_rates={1: "10mbit"})
    for source, rates in ((0, (40e6, 20e6)), (1, (10e6, 10e6))):
        rails = bed.hosts[source].rails
        assert tuple(shaped_rate(rail.host_namespace, rail.name) for rail in rails) == rates
        for flow in netbed.stream(bed, seconds=1.0, pairs=[(source, 1 - source)]):
            assert 0 < wire_rate([flow]) <= 1.1 * rates[flow.rail], flow
            assert flow.wrong_bytes == 0


def test_ingress_is_shaped_where_asked(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=3, rate="20mbit", shape_ingress=True)
    [rail] = bed.hosts[0].rails
    assert shaped_rate(rail.switch_namespace, rail.port) == 20e6
    flows = netbed.stream(bed, seconds=1.0, pairs=[(1, 0), (2, 0)])
    assert 0 < wire_rate(flows) <= 1.1 * 20e6, flows


def test_a_rate_changes_in_place(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=2, rate="10mbit")
    [rail] = bed.hosts[0].rails
    rail.set_rate("40mbit")
    assert shaped_rate(rail.host_namespace, rail.name) == 40e6
    assert 0 < wire_rate(netbed.stream(bed, seconds=0.7, pairs=[(0, 1)])) <= 1.1 * 40e6


def test_counters_count_what_a_rail_carried(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=3, rails=2, rate="20mbit")
    before = bed.counters()
    flows = netbed.stream(bed, seconds=0.5, pairs=[(0, 1)])
    moved = [[a.since(b) for a, b in zip(*host, strict=True)] for host in zip(bed.counters(), before, strict=True)]
    for flow in flows:
        sent, received = moved[0][flow.rail].sent_bytes, moved[1][flow.rail].received_bytes
        assert flow.num_bytes < sent < 1.1 * flow.num_bytes and abs(sent - received) < 10_000
        assert moved[2][flow.rail].received_bytes < 10_000


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["host", "switch"])
def test_a_link_goes_down_and_comes_back(make_netbed: MakeNetbed, place: str) -> None:
    bed = make_netbed(hosts=2, rails=2)
    rail, other = bed.hosts[1].rails
    rail.down(place)
    assert not reaches(bed, 0, rail.ipv4) and reaches(bed, 0, other.ipv4)
    shown = bed.run(["ip", "-o", "link", "show", rail.name], hosts=[1])[0].output
    assert ("NO-CARRIER" in shown) is (place == "switch")
    rail.up(place)
    assert reaches_soon(bed, 0, rail.ipv4) and reaches_soon(bed, 0, rail.ipv6)


def test_packets_are_dropped_one_way_without_a_trace(make_netbed: MakeNetbed) -> None:
    """Drops packets into host 1, then packets out of it. Host 1 answers only in the second case."""
    bed = make_netbed(hosts=2)
    rail = bed.hosts[1].rails[0]
    assert reaches(bed, 0, rail.ipv4)
    for direction, answers in (("in", False), ("out", True)):
        before = counted(bed, 1, "Tcp", "OutRsts")
        rail.drop(direction)
        assert not reaches(bed, 0, rail.ipv4), direction
        assert (counted(bed, 1, "Tcp", "OutRsts") > before) is answers, direction
        rail.heal()
        assert reaches_soon(bed, 0, rail.ipv4), direction


def test_one_port_is_filtered_and_the_others_are_not(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=2)
    address = bed.hosts[1].rails[0].ipv4
    bed.hosts[1].rails[0].drop_port(9)
    assert not reaches(bed, 0, address)
    bed.hosts[1].rails[0].heal()
    bed.hosts[1].rails[0].drop_port(10)
    assert reaches(bed, 0, address)


def test_some_packets_are_dropped(make_netbed: MakeNetbed) -> None:
    def send(_: netbed.Host, address: str) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(400):
                sender.sendto(b"x", (address, 9))

    bed = make_netbed(hosts=2)
    rail = bed.hosts[1].rails[0]
    assert reaches(bed, 0, rail.ipv4)
    rail.drop("in", one_in=4)
    before = counted(bed, 1, "Udp", "NoPorts")
    bed.call(send, rail.ipv4, hosts=[0])
    assert 200 <= counted(bed, 1, "Udp", "NoPorts") - before <= 380  # 300 on average, standard deviation 9


def test_plain_tcp_delivers_corrupted_bytes(make_netbed: MakeNetbed) -> None:
    reason = netbed.corruption_unavailable()
    if reason:
        pytest.skip(reason)
    bed = make_netbed(hosts=2, rails=2, rate="100mbit")
    rail = bed.hosts[1].rails[0]
    rail.corrupt("in", one_in=4)
    corrupted, untouched = netbed.stream(bed, seconds=1.0, pairs=[(0, 1)])
    assert corrupted.wrong_bytes > 0 and corrupted.num_bytes > 5_000_000
    assert untouched.wrong_bytes == 0
    rail.heal()
    assert netbed.stream(bed, seconds=0.3, pairs=[(0, 1)])[0].wrong_bytes == 0


def test_corruption_reaches_every_offset_and_spares_the_transport_header(make_netbed: MakeNetbed) -> None:
    """Exactly one byte of every datagram is changed, and each of its 8 bytes is changed in some datagrams."""
    reason = netbed.corruption_unavailable()
    if reason:
        pytest.skip(reason)
    bed = make_netbed(hosts=2)
    bed.hosts[0].rails[0].corrupt("out", one_in=1)

    def receive(host: netbed.Host) -> list[bytes]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
            receiver.bind((host.rails[0].ipv4, 9))
            receiver.settimeout(5)
            return [receiver.recv(100) for _ in range(200)]

    def send(_: netbed.Host, address: str) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(300):
                sender.sendto(bytes(8), (address, 9))
                time.sleep(0.001)

    receiver = bed.start_call(receive, hosts=[1])
    bed.call(send, bed.hosts[1].rails[0].ipv4, hosts=[0])
    changed = [[at for at, byte in enumerate(data) if byte] for data in receiver.wait(10, check=True)[0].value]
    assert all(len(places) == 1 for places in changed)
    assert {places[0] for places in changed} == set(range(8))


# --- multipath TCP ----------------------------------------------------------------------------------------------------

TRANSFER = """
import os, socket, time
if os.environ["RANK"] == "0":
    with socket.create_server((os.environ["MASTER_ADDR"], 5000)) as server:
        connection, _ = server.accept()
        while connection.recv(1 << 20):
            pass
else:
    while True:
        try:
            connection = socket.create_connection((os.environ["MASTER_ADDR"], 5000), timeout=5)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for _ in range(4):
        connection.sendall(bytes(1 << 20))
        time.sleep(0.05)
"""


def test_mptcp_spreads_a_connection_over_all_rails(make_netbed: MakeNetbed) -> None:
    if not Path("/proc/sys/net/mptcp/enabled").exists():
        pytest.skip("this kernel has no MPTCP")
    bed = make_netbed(hosts=2, rails=3, rate="50mbit")

    def sent(env: dict[str, str]) -> list[int]:
        before = bed.hosts[1].counters()
        bed.run([sys.executable, "-c", TRANSFER], env=env)
        pairs = zip(bed.hosts[1].counters(), before, strict=True)
        return [now.since(then).sent_bytes for now, then in pairs]

    with netbed.mptcp(bed) as env:
        assert min(sent(env)) > 500_000
    with netbed.mptcp(bed):  # may be prepared again; changes nothing for commands without its environment
        assert [carried > 500_000 for carried in sent({})] == [True, False, False]
