# SPDX-License-Identifier: Apache-2.0
"""The demonstration's third act: two ranks with two network interfaces each, and a link that is cut during training."""

import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agspeed import netbed
from agspeed.reporting import summary

_RATE = "500mbit"
_STEPS = 12
_READY_SECONDS = 60.0
"""For compiling and tuning. A rank that is not ready by then is timed as it is."""
_CUT_SECONDS = 10.0
_WAYS = {"gloo": "eager DDP, Gloo", "compile": "torch.compile + DDP, Gloo", "agspeed": "agspeed"}

Log = list[dict[str, Any]]


def show(folder: Path) -> None:
    """Prints the step time of three ways to train, and what a cut link costs two of them."""
    if reason := netbed.unavailable():
        print(f"left out: no networks of its own can be made here ({reason})")
        return
    print(
        f"Two hosts made of network namespaces, two links of {_RATE[:-4]} Mbit/s between them, one core each.\n"
        "Gloo uses one link; agspeed uses both, and puts gradients on the wire while the backward computes.\n"
    )
    medians = {}
    for way, title in _WAYS.items():
        medians[way], words = _train(way, folder / "ranks" / way)
        first = next(iter(medians.values()))
        gain = f"{first / medians[way]:.2f} ×" if medians[way] else ""
        print(f"{title:>28}{1e3 * medians[way]:>9.0f} ms a step{gain:>10}   {words}", flush=True)
    print(
        "\nWhat to look at: the gain over eager DDP; the buckets that agspeed chose; what the cut link cost. A run\n"
        "over Gloo does not get over it, agspeed goes on over the other link."
    )


def _train(way: str, folder: Path) -> tuple[float, str]:
    """Returns the median step in seconds, and a text that says what happened when a link was cut."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with netbed.Netbed(hosts=2, rails=2, rate=_RATE) as bed:
        environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "rail0", "AGSPEED_SOCKET_IFNAME": "rail0,rail1"}
        environment |= {"AGSPEED_PROGRESS": "0", "AGSPEED_CACHE_DIR": str(folder / "cache")}
        job = bed.start([sys.executable, "-m", "benchmarks.demo_rank", way, str(folder)], env=environment)
        _wait(lambda: job.is_over or _is_ready(_read(folder)), _READY_SECONDS)
        before = len(_read(folder))
        _wait(lambda: job.is_over or len(_read(folder)) >= before + _STEPS, 60.0)
        timed = _read(folder)[before:]
        if not timed:
            return 0.0, f"did not train: {_last_words(job)}"
        median = statistics.median(entry["seconds"] for entry in timed)
        if way == "compile":
            return median, ""
        chosen = _chosen(_read(folder)) if way == "agspeed" else ""
        return median, f"{chosen}link cut: {_cut(bed, job, folder, median)}"


def _cut(bed: netbed.Netbed, job: netbed.Job, folder: Path, median: float) -> str:
    """Takes host 1's first link down. Returns a text with the time that this cost."""
    before = len(_read(folder))
    bed.hosts[1].rails[0].down()
    _wait(lambda: job.is_over or len(_read(folder)) >= before + _STEPS, _CUT_SECONDS)
    later = _read(folder)[before:]
    if job.is_over:
        return f"the run ended: {_last_words(job)}"
    if len(later) < 2:
        return f"no step for {_CUT_SECONDS:.0f} s"
    longest = max(entry["seconds"] for entry in later)
    after = statistics.median(entry["seconds"] for entry in later[-5:])
    return f"{longest - median:.1f} s once, then {1e3 * after:.0f} ms a step over the other link"


def _chosen(log: Log) -> str:
    latest = next((entry for entry in reversed(log) if entry.get("group")), None)
    if latest is None:
        return f"still tuning after {_READY_SECONDS:.0f} s\n{'':>28}"
    return f"{latest['chosen']}\n{'':>28}{summary.group(latest['group'])}\n{'':>28}"


def _is_ready(log: Log) -> bool:
    return bool(log) and log[-1]["state"] == "ready"


def _read(folder: Path) -> Log:
    """Returns the complete lines of rank 0's log."""
    try:
        lines = (folder / "log.jsonl").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _last_words(job: netbed.Job) -> str:
    outcomes = job.wait(10.0)
    lines = [line for outcome in outcomes for line in outcome.failure().splitlines() if line.strip()]
    return lines[-1].strip() if lines else "without a word"


def _wait(is_over: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_over() and time.monotonic() < deadline:
        time.sleep(0.1)
