# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs whose ranks are killed: how soon the others go on, and what the faults cost.

A case has jobs, one after another: ours (`agspeed run --min-np`), and the same script restarted by torchrun from a
checkpoint. A fault kills a random rank at a random moment of a step, and a new process takes its place before the next
fault. Seconds count from the kill: until the last survivor got the error, and until all survivors have made their next
step. Under torchrun all ranks are new processes. If they do not come back after a fault, the job ends there, and its
row has the faults before it.

With `spares_oldest`, one process lives as long as the job. The line of least squares through its resident memory after
each fault gives the growth. The first quarter of the faults is left out, because caches fill then.
"""

import dataclasses
import statistics
import time
from typing import Any

from benchmarks.elastic.job import Job, NotInTimeError
from benchmarks.measure.machine import Watch


def plan(case: dict[str, Any], threads: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"way": way, "faults": count} for way, count in case["faults"].items()]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    case, watch = spec["case"], Watch(spec["cores"])
    spares = case.get("spares_oldest", False)
    with Job(spec["way"], case["ranks"], case["compute_seconds"], case["seed"], spares_oldest=spares) as job:
        job.begin()
        faults, held, is_lost = [], [], False
        for _ in range(spec["faults"]):
            try:
                faults.append(job.kill_one())
            except NotInTimeError:
                if spec["way"] == "elastic":
                    raise
                is_lost = True
                break
            held.append({"at": time.monotonic(), **job.held()})
        steps, digests = (0, []) if is_lost else job.end()
        return {
            "way": spec["way"],
            "faults": [dataclasses.asdict(fault) for fault in faults],
            "is_lost": is_lost,
            "steps": steps,
            "equal_weights": is_lost or len(digests) == 1,
            "goodput": job.goodput(),
            "held": held,
            "environment": watch.read(),
        }


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    jobs = [
        {
            "way": result["way"],
            "faults": len(result["faults"]),
            **{
                name: {"p50": _quantile(values, 0.5), "p95": _quantile(values, 0.95), "max": max(values)}
                for name in ("noticed", "resumed", "complete", "joined_pause")
                if (values := [fault[name] for fault in result["faults"] if fault[name] is not None])
            },
            "is_lost": result["is_lost"],
            "lost_steps": max((fault["lost"] for fault in result["faults"]), default=0),
            "steps": result["steps"],
            "equal_weights": result["equal_weights"],
            "goodput": result["goodput"],
            "held": [*result["held"][:1], *result["held"][-1:]],
            "memory_growth_per_hour": _growth_per_hour(result["held"]) if case.get("spares_oldest") else None,
            "environment": result["environment"],
        }
        for result in results
    ]
    wrong = [job["way"] for job in jobs if not job["equal_weights"]]
    status = {"status": "failed", "reason": f"weights differ: {', '.join(wrong)}"} if wrong else {"status": "ok"}
    return status | {"ranks": case["ranks"], "compute_seconds": case["compute_seconds"], "jobs": jobs}


def _growth_per_hour(held: list[dict[str, float]]) -> float:
    """Returns the growth of resident memory in an hour, as a share of the memory."""
    settled = held[len(held) // 4 :]
    sizes = [each["resident_kib"] for each in settled]
    slope, _ = statistics.linear_regression([each["at"] for each in settled], sizes)
    return slope * 3600 / statistics.fmean(sizes)


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
