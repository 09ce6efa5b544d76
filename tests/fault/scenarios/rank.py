# SPDX-License-Identifier: Apache-2.0
"""One rank of a scenario: runs all-reduces back to back until it is killed.

Each result is compared bit by bit with the result of the same operation before any fault. A rank writes one JSON object
per line; all other lines are its log:

    {"ready": digest of the fault-free results}
    {"operations": [[case, begin, end], ...], "wrong": number of wrong results so far, "counters": see `_counters`}
    {"failed": time, "error": type, "message": text}

Times are read from the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import distributed

import agspeed.distributed  # registers the backend
from agspeed import native
from agspeed.errors import AgspeedError
from agspeed.netbed import Host

__all__ = ["SIZES", "load_once", "run"]

# Elements of the operations in turn: eager messages and rendezvous messages, and no round numbers.
SIZES = (65_543, 301, 262_147, 4_099)
_REPORT_EVERY_S = 0.05
_MOST_PER_LINE = 40  # so that a line is one write to a pipe
_LINGER_S = 5.0  # so that others do not learn of a failure only from this process's end


def load_once() -> None:
    """Loads the libraries that ranks need into the process that they are forked from."""
    torch.set_num_threads(1)
    if native.load() is None:
        raise AgspeedError(native.why_missing())


def run(host: Host, outputs: list[int], environment: Mapping[str, str], pause_s: float) -> None:
    """Runs the rank until it is killed or fails. It writes to `outputs[rank]` and sleeps for `pause_s` between
    operations."""
    for descriptor in (1, 2):
        os.dup2(outputs[host.index], descriptor)
    for output in outputs:
        os.close(output)
    os.environ.update(environment, RANK=str(host.index))
    try:
        distributed.init_process_group("agspeed")
        _reduce_for_ever(pause_s)
    except Exception as error:
        text = " ".join(str(error).split())
        _say({"failed": time.monotonic(), "error": type(error).__name__, "message": text[:3000]})
        time.sleep(_LINGER_S)


def _reduce_for_ever(pause_s: float) -> None:
    inputs = [_input(distributed.get_rank(), case) for case in range(len(SIZES))]
    results = [_fault_free(case, tensor) for case, tensor in enumerate(inputs)]
    distributed.barrier()
    _say({"ready": hashlib.sha256(b"".join(result.numpy().tobytes() for result in results)).hexdigest()})
    buffers = [torch.empty_like(tensor) for tensor in inputs]
    operations: list[tuple[int, float, float]] = []
    reported = time.monotonic()
    wrong = turn = 0
    while True:
        case = turn % len(SIZES)
        buffers[case].copy_(inputs[case])
        begin = time.monotonic()
        distributed.all_reduce(buffers[case])
        end = time.monotonic()
        operations.append((case, round(begin, 5), round(end, 5)))
        wrong += not torch.equal(_bits(buffers[case]), _bits(results[case]))
        turn += 1
        if end - reported > _REPORT_EVERY_S or len(operations) == _MOST_PER_LINE:
            _say({"operations": operations, "wrong": wrong, "counters": _counters()})
            operations = []
            reported = end
        time.sleep(pause_s)


def _input(rank: int, case: int) -> torch.Tensor:
    """Returns a tensor whose elements all differ, and differ between ranks."""
    return torch.randn(SIZES[case], generator=torch.Generator().manual_seed(1000 * case + rank))


def _fault_free(case: int, tensor: torch.Tensor) -> torch.Tensor:
    """Returns the result that all later ones have to equal. Asserts that it is close to the sum in double precision."""
    result = tensor.clone()
    distributed.all_reduce(result)
    exact = sum(_input(rank, case).double() for rank in range(distributed.get_world_size()))
    assert torch.allclose(result.double(), exact, rtol=1e-5, atol=1e-5), f"case {case} is wrong before any fault"
    return result


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32)


def _counters() -> dict[str, Any]:
    """Returns counts of past events and the process's current use of resources."""
    found = agspeed.distributed.counters()
    rails = found["rails"]
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {
        "at": time.monotonic(),
        "sent": [rail["bytes_sent"] for rail in rails],
        "failovers": sum(rail["failovers"] for rail in rails),
        "stalls": sum(rail["stalls"] for rail in rails),
        "resent": found["frames_resent"],
        "refused": found["connections_refused"],
        "retransmitted": _tcp_retransmissions(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "resident_kib": int(status["VmRSS"].split()[0]),
        "cpu_s": time.process_time(),
    }


def _tcp_retransmissions() -> int:
    """The number of segments that the kernel of this host has retransmitted."""
    names, values = (
        line.split() for line in Path("/proc/self/net/snmp").read_text().splitlines() if line.startswith("Tcp:")
    )
    return int(values[names.index("RetransSegs")])


def _say(message: Mapping[str, Any]) -> None:
    os.write(1, json.dumps(message, separators=(",", ":")).encode() + b"\n")
