# SPDX-License-Identifier: Apache-2.0
"""`agspeed doctor --peer` and `doctor --net` find and name each fault of networks of several hosts."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

import pytest

from agspeed import native, netbed
from tests.fault.conftest import MakeNetbed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]

LIMIT_S = 240
PORT = 29650
KEY, OTHER_KEY = "0123456789abcdef0123456789abcdef", "f" * 32
DOCTOR = [sys.executable, "-m", "agspeed", "doctor"]


def variables(key: str) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(sys.path), "AGSPEED_JOB_KEY": key}


def listen(bed: netbed.Netbed, keys: dict[int, str]) -> list[netbed.Job]:
    """Starts listeners on these hosts and waits until they are ready."""
    ready = {host: threading.Event() for host in keys}

    def hear(host: int, line: str) -> None:
        if "listens at port" in line:
            ready[host].set()

    jobs = [
        bed.start([*DOCTOR, "--listen"], env=variables(key), hosts=[host], on_line=hear) for host, key in keys.items()
    ]
    assert all(event.wait(LIMIT_S) for event in ready.values())
    return jobs


def diagnose(bed: netbed.Netbed, *options: str) -> tuple[int, dict[str, Any]]:
    job = bed.start([*DOCTOR, *options, "--json"], env=variables(KEY), hosts=[0])
    [outcome] = job.wait(LIMIT_S)
    return outcome.code, json.loads(outcome.output)


def failures(document: dict[str, Any]) -> dict[str, str]:
    found = {check["name"]: check for check in document["checks"] if check["status"] == "fail"}
    assert all(check["remedy"] for check in found.values())
    return {name: check["detail"] for name, check in found.items()}


def test_a_rail_cut_a_port_filtered_another_key_and_a_small_mtu_are_each_named(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=4, rails=4, rate="200mbit")
    bed.hosts[1].rails[1].drop("in")
    bed.hosts[2].rails[2].drop_port(PORT)
    bed.hosts[2].rails[3].drop_larger_than(1400)
    jobs = listen(bed, {1: KEY, 2: KEY, 3: OTHER_KEY})
    code, document = diagnose(bed, "--peer", ",".join(host.name for host in bed.hosts[1:]))
    found = failures(document)
    assert (code, set(found)) == (1, {"rail", "port", "packet size", "job key"})
    assert found["rail"].startswith("rail1 from host0 to host1: 198.18.1.2 is ")
    assert found["port"].startswith(f"rail2 from host0 to host2: port {PORT} of 198.18.2.3 is silent")
    assert found["packet size"].startswith("rail3 from host2 to host0: packets of more than 1400 bytes do not arrive")
    assert found["job key"] == "host0 and host3: the job keys are different"
    assert len(document["paths"]) == 2 * 8 - 1, "no way back is known of a rail that is cut"
    for job in jobs:
        job.end()


def test_four_hosts_with_four_rails_and_no_fault(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=4, rails=4, rate="200mbit")
    jobs = listen(bed, dict.fromkeys((1, 2, 3), KEY))
    code, document = diagnose(bed, "--peer", "host1,host2,host3")
    assert (code, failures(document)) == (0, {})
    assert len(document["paths"]) == 2 * 12
    for path in document["paths"]:
        assert path["packet_bytes"] == 1500 and path["key"] == "equal" and path["round_trip_s"] > 0
        rate = path["bits_per_second"]
        assert rate is None or 0 < rate < 2.5e8, "none: the machine was too busy to measure"
    for job in jobs:
        job.end()


def test_ranks_of_torchrun_look_at_each_other(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=3, rails=2, rate="100mbit")
    bed.hosts[2].rails[1].drop("in")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=3", "--nproc-per-node=2"]
    place = [f"--master-addr={bed.hosts[0].rails[0].ipv4}", "--master-port=29511"]
    jobs = [
        bed.start(
            [*launcher, *place, f"--node-rank={host}", "-m", "agspeed", "doctor", "--net"],
            env={**variables(KEY), "OMP_NUM_THREADS": "1"},
            hosts=[host],
        )
        for host in range(3)
    ]
    first, *others = [job.wait(LIMIT_S)[0] for job in jobs]
    assert first.code == 1, first.output
    assert "✗ rail             rail1 of host2, with every other host: " in first.output, first.output
    assert first.output.count("✗ ") == 1 and "│ host1 │ host2 │" in first.output
    assert all(outcome.code == 1 and "✗" not in outcome.output for outcome in others)


def test_a_host_that_does_not_come_is_named(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=3, rails=1)
    jobs = [bed.start([*DOCTOR, "--net", "--json"], env=variables(KEY), hosts=[host]) for host in (0, 1)]
    first, second = [job.wait(LIMIT_S)[0] for job in jobs]
    assert (first.code, second.code) == (1, 1), second.output
    found = failures(json.loads(first.output))
    assert "node 2 has not come within 10 s" in found["peer"] and second.output == ""


def test_where_the_first_host_does_not_answer_the_others_say_so(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=2, rails=1)
    [outcome] = bed.start([*DOCTOR, "--net"], env=variables(KEY), hosts=[1]).wait(LIMIT_S)
    assert outcome.code == 1 and "the store at 198.18.0.1:29500 (MASTER_ADDR, MASTER_PORT)" in outcome.output
