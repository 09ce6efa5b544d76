# SPDX-License-Identifier: Apache-2.0
"""Operations through NCCL's network tables between hosts: agspeed's plug-in beside NCCL's own socket transport.

There is no communicator and no GPU: processes call the tables on host memory. A case's `pattern` names the operation:

- pair: `bytes` in `messages` of equal size from host 0 to host 1, on one connection or one per rail. It ends when the
  receiver has confirmed it.
- ring: an all-reduce of `bytes` around all hosts. Each host has one connection, or one per rail, to the next, with
  `messages` slices of up to 1 MiB in flight on each. It ends with its last rank.
- faults: like pair, for agspeed only: 200 operations or more while links fail (benchmarks/comm/nccl_faults.py).

Each way gets new processes for each block. The ways follow each other there and back, on one network.
"""

import dataclasses
import statistics
from contextlib import nullcontext
from typing import Any

from benchmarks.comm import sizes
from benchmarks.measure.machine import Watch
from benchmarks.measure.statistics import median_estimate

_STREAM_SECONDS, _PASSES = 1.5, 4
_VOID = (0.96, 1.04)


def plan(case: dict[str, Any], threads: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """One process owns the network, so that all ways have the same conditions."""
    return [{}]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    from agspeed import netbed
    from benchmarks.comm import nccl_faults, network, sides

    case, settings = spec["case"], spec["settings"]
    watch, operations, failed = Watch(spec["cores"]), [], dict[str, str]()
    with network.build(case) as bed:
        stream = network.stream(bed, case, _STREAM_SECONDS)
        described = {"hosts": case["hosts"], "rates": network.host_rates(case), "stream": stream, "failed": failed}
        if case["pattern"] == "faults":
            rows = nccl_faults.measure(bed, case, sizes.parse(case["size"]), sides.job_key())
            return described | {"faults": rows, "environment": watch.read()}
        seconds = case["seconds"] if settings["seconds"] is None else settings["seconds"]
        needs_mptcp = any("mptcp" in name for name in case["ways"])
        with netbed.mptcp(bed) if needs_mptcp else nullcontext({}) as over_mptcp:
            variables = {"key": sides.job_key(), "mptcp": dict(over_mptcp)}
            for text, messages in case["operations"]:
                found = _blocks(bed, case, sizes.parse(text), messages, seconds, variables, failed)
                operations.append({"bytes": sizes.parse(text), "messages": messages, "ways": found})
    return described | {"operations": operations, "environment": watch.read()}


def _least_ms(case: dict[str, Any], num_bytes: int) -> float | None:
    """The least time that shaped rails need for one of many operations back to back; None if the rails are not shaped.

    A shaper lets some bytes through at once after a pause. They help a block's first operation only, which is not
    counted.
    """
    from benchmarks.comm import bounds, network

    if not network.is_shaped(case):
        return None
    links = [dataclasses.replace(link, burst=0.0) for link in network.links(network.host_rates(case))]
    if case["pattern"] == "ring":
        return 1e3 * bounds.all_reduce_seconds(num_bytes, links)
    return 1e3 * num_bytes / links[0].rate


def _blocks(
    bed: Any,
    case: dict[str, Any],
    num_bytes: int,
    messages: int,
    seconds: float,
    variables: Any,
    failed: dict[str, str],
) -> dict[str, Any]:
    from agspeed import netbed
    from benchmarks.comm import nccl_programs

    run = {"pair": nccl_programs.pair, "ring": nccl_programs.ring}[case["pattern"]]
    blocks: dict[str, list[Any]] = {name: [] for name in case["ways"] if name not in failed}
    order = list(blocks)
    for _ in range(_PASSES):
        for name in order:
            way = nccl_programs.find(name)
            environment = {**variables["key"], **(variables["mptcp"] if way.over_mptcp else {})}
            try:
                blocks[name].append(run(bed, way, num_bytes, messages, seconds / _PASSES, environment))
            except (RuntimeError, netbed.NetbedError) as error:
                if name == nccl_programs.OURS:
                    raise
                failed[name] = str(error)
        order = [name for name in reversed(order) if name not in failed]
    return {name: _row(num_bytes, found) for name, found in blocks.items() if found and name not in failed}


def _row(num_bytes: int, blocks: list[Any]) -> dict[str, Any]:
    times = [second for block in blocks for second in block.seconds]
    return {
        "ms": median_estimate([1e3 * second for second in times]).to_dict(),
        "block_ms": [1e3 * statistics.fmean(block.seconds) for block in blocks],
        "mean_ms": 1e3 * statistics.fmean(times),
        "bits_per_second": 8 * num_bytes / statistics.fmean(times),
        "cpu_seconds_per_gb": 1e9 * statistics.fmean(block.cpu_seconds for block in blocks) / num_bytes,
    }


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """Adds rates relative to agspeed's. A cell is void if a second agspeed, the control, differs from the first."""
    [cell] = results
    if wrong := sum(row["wrong_bytes"] for row in cell.get("faults", [])):
        return cell | {"status": "failed", "reason": f"{wrong} bytes came wrong"}
    for operation in cell.get("operations", []):
        ways = operation["ways"]
        ours, least = ways["agspeed"]["bits_per_second"], _least_ms(case, operation["bytes"])
        for row in ways.values():
            row["rate_of_agspeed"] = ours / row["bits_per_second"]
            if least is not None:
                row["share"] = least / row["mean_ms"]
        control = ways.get("control", ways["agspeed"])["rate_of_agspeed"]
        if not _VOID[0] <= control <= _VOID[1]:
            reason = f"a second agspeed differs by {control:.3f} at {sizes.show(operation['bytes'])}"
            return cell | {"status": "void", "reason": reason}
    return cell | {"status": "ok"}
