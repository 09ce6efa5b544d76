# SPDX-License-Identifier: Apache-2.0
"""torch over NCCL with the network plug-in: two processes on one GPU get the same results as over NCCL's own sockets.

Host names differ between the processes, so NCCL treats them as separate nodes and sends over the network.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import torch

from agspeed import nccl

PROGRAM = """
import hashlib, os
import torch
from torch import distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("nccl")
torch.manual_seed(rank)
digest = hashlib.sha256()
for count in (1, 1000, 1 << 20, (1 << 22) + 3):
    values = torch.randn(count, device="cuda")
    dist.all_reduce(values)
    gathered = [torch.empty_like(values) for _ in range(2)]
    dist.all_gather(gathered, values * (rank + 1))
    for tensor in (values, *gathered):
        digest.update(tensor.cpu().numpy().tobytes())
print("DIGEST", digest.hexdigest(), flush=True)
dist.destroy_process_group()
"""


def run(**environment: str) -> tuple[list[str], str]:
    """Returns the digests of both processes, and everything that they printed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NCCL_DEBUG": "INFO"}
    variables |= {
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_SOCKET_IFNAME": "lo",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, **variables, "RANK": str(rank), "NCCL_HOSTID": f"host{rank}", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), "\n".join(printed)[-6000:]
    digests = [line.split()[1] for text in printed for line in text.splitlines() if line.startswith("DIGEST")]
    return digests, "\n".join(printed)


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.skipif(not nccl.library().exists(), reason="the plug-in is not built")
def test_two_processes_on_one_gpu_get_what_nccls_sockets_give() -> None:
    plain, log = run(NCCL_NET="Socket")
    assert "Using network Socket" in log
    plugged, log = run(**nccl.variables())
    assert "Using network agspeed" in log, log[-6000:]
    assert plugged == plain and len(plain) == 2
