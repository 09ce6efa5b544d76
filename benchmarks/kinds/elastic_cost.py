# SPDX-License-Identifier: Apache-2.0
"""Cost of being elastic while nothing happens: steps of `elastic.run` beside steps of a plain loop.

Three jobs of `agspeed run` take turns: a plain loop, another one as the control, and an elastic job. All ranks train
the same small model with DistributedDataParallel. A block's time is the slowest rank's. `advance` is the time that an
elastic step has more: the time in `State.advance`. Whole steps vary by 2 % on two cores, so they cannot show it.
"""

import contextlib
from typing import Any

from benchmarks.elastic.quiet_job import QuietJob, compare_jobs
from benchmarks.measure.machine import Watch
from benchmarks.measure.pairing import Comparison, Limits
from benchmarks.measure.statistics import median_estimate

_HALF_WIDTH = 0.002
_BLOCK_SECONDS = 0.2


def plan(case: dict[str, Any], threads: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [{}]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    size, watch = spec["case"]["ranks"], Watch(spec["cores"])
    limits = Limits(**spec["settings"]["limits"] | {"half_width": _HALF_WIDTH, "block_seconds": _BLOCK_SECONDS})
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(QuietJob(way, size)) for way in ("plain", "plain", "elastic")]
        control, elastic = compare_jobs(jobs, limits)
        advance = median_estimate([1e6 * seconds for seconds in jobs[-1].advancing])
    return {
        "ranks": size,
        "control": _described(control),
        "elastic": _described(elastic),
        "advance_us": advance.to_dict(),
        "environment": watch.read(),
    }


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    [cell] = results
    return cell | {"status": "ok"}


def _described(result: Comparison) -> dict[str, Any]:
    pairs = zip(result.contender, result.reference, strict=True)
    return result.to_dict() | {"slowdown": median_estimate([mine / plain for mine, plain in pairs]).to_dict()}
