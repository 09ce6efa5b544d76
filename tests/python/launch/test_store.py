# SPDX-License-Identifier: Apache-2.0
"""The store of a job listens on the address that the job names, and on loopback alone if all ranks are on one host."""

from __future__ import annotations

import datetime
import importlib
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from agspeed.torch_compat import job_store
from tests.python.support.launcher import run

_RANK = """
import json, os, psutil, torch
import agspeed
from torch import distributed

distributed.init_process_group({backend!r})
total = torch.ones(1)
distributed.all_reduce(total)
listening = [row.laddr for row in psutil.Process().net_connections("inet") if row.status == psutil.CONN_LISTEN]
distributed.barrier()
print(json.dumps([total.item(), listening]))
distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["agspeed", "gloo"])
def test_ranks_that_agspeed_run_starts_listen_on_loopback_alone(backend: str) -> None:
    interfaces = {"AGSPEED_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    status, out, err = run("-np", "2", sys.executable, "-c", _RANK.format(backend=backend), **interfaces)
    assert status == 0, err
    lines = [json.loads(line.partition(":")[2]) for line in out.splitlines() if line.endswith("]]")]
    assert [total for total, _ in lines] == [2.0, 2.0], out
    sockets = [tuple(where) for _, each in lines for where in each]
    assert len(sockets) >= 1
    assert [where for where in sockets if not where[0].removeprefix("::ffff:").startswith("127.")] == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_a_store_at_loopback_listens_there(host: str) -> None:
    timeout = datetime.timedelta(seconds=20)
    server = job_store.serve(host, 0, timeout=timeout, wait_for_workers=False)
    assert _addresses_of(server.port) == ["127.0.0.1" if host == "localhost" else host]
    client = type(server)(host, server.port, timeout=timeout)
    client.set("key", "value")
    assert server.get("key") == b"value"


@pytest.mark.parametrize(("local_size", "is_local"), [(None, False), ("1", False), ("3", True)])
def test_a_store_at_loopback_serves_other_hosts_if_there_may_be_some(
    local_size: str | None, is_local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubeflow gives rank 0 the address localhost, and the other ranks the name of its pod."""
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if local_size is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local_size)
    timeout = datetime.timedelta(seconds=20)
    server = job_store.serve("localhost", 0, timeout=timeout, wait_for_workers=False)
    assert (_addresses_of(server.port) == ["127.0.0.1"]) == is_local


_ON_A_HOST_OF_TWO_NETWORKS = """
import datetime, psutil
from torch import distributed
import agspeed
agspeed.distributed.register()

def served(host, port):
    options = {"wait_for_workers": False, "timeout": datetime.timedelta(seconds=20)}
    store = next(distributed.rendezvous(f"tcp://{host}:{port}", 0, 1, **options))[0]
    store.set("key", "value")
    rows = psutil.Process().net_connections("inet")
    return [row.laddr.ip for row in rows if row.status == psutil.CONN_LISTEN and row.laddr.port == port], store

print(served("10.71.0.1", 29611)[0], served("a-name", 29612)[0] != ["10.71.0.1"])
"""


def test_a_store_at_one_address_of_a_host_listens_there(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("10.71.0.1 a-name\n")
    prepare = f"ip link set lo up && ip addr add 10.71.0.1/32 dev lo && mount --bind {hosts} /etc/hosts"
    command = ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", f'{prepare} && exec "$@"', "sh"]
    program = [sys.executable, "-c", _ON_A_HOST_OF_TWO_NETWORKS]
    done = subprocess.run([*command, *program], capture_output=True, text=True, timeout=120, check=False)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr.strip()[-200:]}")
    assert done.stdout.split("\n")[0] == "['10.71.0.1'] True", done.stdout + done.stderr


def test_two_stores_of_a_process_may_have_one_port() -> None:
    """A process does this when it makes a default group again."""
    # By name, because a function of torch.distributed hides the module.
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    job_store.listen_on_one_address()
    job_store.listen_on_one_address()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    timeout = datetime.timedelta(seconds=20)
    first, second = (rendezvous._create_c10d_store("127.0.0.1", port, 0, 1, timeout) for _ in range(2))
    assert _addresses_of(port) == ["127.0.0.1"]
    first.set("key", "value")
    assert second.get("key") == b"value"


def _addresses_of(port: int) -> list[Any]:
    rows = psutil.Process().net_connections("inet")
    return [row.laddr.ip for row in rows if row.status == psutil.CONN_LISTEN and row.laddr.port == port]
