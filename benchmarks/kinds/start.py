# SPDX-License-Identifier: Apache-2.0
"""The start of a large group on one host: seconds, and descriptors, threads and memory of each rank.

Ranks are forked from a process that has loaded torch and agspeed. They meet at torch's store and all-reduce a small
buffer, then a large one, of which every rank sends a part to every other. Seconds count from the moment at which all
ranks were asked to begin, for the slowest rank. Descriptors, threads and memory count from the same moment, for the
rank that added most.
"""

import multiprocessing
import os
import resource
import socket
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.measure.machine import Watch

_LIMIT_S = 300
_SMALL, _LARGE = 1 << 8, 1 << 18  # elements


def plan(case: dict[str, Any], threads: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"way": way} for way in case["ways"]]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "agspeed._native"])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    size, watch = spec["case"]["ranks"], Watch(spec["cores"])
    ends: list[Connection] = []
    for rank in range(size):
        ours, theirs = context.Pipe()
        context.Process(target=_run, args=(rank, size, port, spec["way"], theirs), daemon=True).start()
        theirs.close()
        ends.append(ours)
    for word in ("begin", "end"):
        found = [_received(end) for end in ends]
        for end in ends:
            end.send(word)
    most = {key: max(each[key] for each in found) for key in found[0]}
    return {"way": spec["way"], **most, "environment": watch.read()}


def _received(end: Connection) -> Any:
    if not end.poll(_LIMIT_S):
        raise TimeoutError(f"a rank was not done after {_LIMIT_S} s")
    return end.recv()


def _run(rank: int, size: int, port: int, way: str, end: Connection) -> None:
    os.environ |= {"AGSPEED_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    os.environ["AGSPEED_SHARED_MEMORY"] = "1" if way == "shared memory" else "0"
    import torch
    from torch import distributed

    import agspeed  # noqa: F401  registers the backend

    torch.set_num_threads(1)
    end.send(None)
    end.recv()
    before, started = _held(), time.monotonic()
    distributed.init_process_group(
        "gloo" if way == "gloo" else "agspeed", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size
    )
    seconds = {"init_seconds": time.monotonic() - started}
    for name, count in (("small_seconds", _SMALL), ("large_seconds", _LARGE)):
        tensor = torch.ones(count)
        distributed.all_reduce(tensor)
        seconds[name] = time.monotonic() - started
        assert float(tensor[0]) == size == float(tensor[-1]), tensor
    end.send(seconds | {key: value - before[key] for key, value in _held().items()})
    end.recv()
    distributed.destroy_process_group()


def _held() -> dict[str, float]:
    resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "resident_mib": resident / (1 << 20),
    }


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    return {"status": "ok", "ranks": case["ranks"], "starts": results}
