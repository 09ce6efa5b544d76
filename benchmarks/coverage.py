# SPDX-License-Identifier: Apache-2.0
"""`agspeed bench --coverage MODEL`: where the time of a training step goes if the native backend runs the model.

`measure/step_shares.py` explains how time is attributed. The measurement runs in this process, which must not have
imported torch before: threads and caches are set first.
"""

import argparse
import contextlib
import datetime
import gc
import json
import math
import os
import shlex
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rich import box
from rich.console import Console
from rich.table import Table

from agspeed import files
from agspeed.reporting import format as fmt
from benchmarks import worker
from benchmarks.measure import candidates, machine
from benchmarks.measure.step_shares import CATEGORIES, STEP, Event, StepTime, attribute, dearest_calls, shares_of

if TYPE_CHECKING:
    from benchmarks.workloads.base import Training, Workload

VERSION = 1
FLAG = "--coverage"
_CANDIDATE = "agspeed-native"
_NUM_DEAREST = 10
_WARM_UP = 2
"""Steps that the profiler records first and that do not count: its own first events are slow."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{FLAG}: {message}; it takes a model, --threads, --steps, --settle-seconds and --json")


def is_wanted(arguments: Sequence[str]) -> bool:
    return any(argument == FLAG or argument.startswith(f"{FLAG}=") for argument in arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs the command. Returns its exit code. Raises: ValueError in one sentence for wrong input."""
    given = _parser().parse_args(arguments)
    _check(given)
    document = {
        "version": VERSION,
        "command": shlex.join(["agspeed", "bench", *arguments]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **measure(given.coverage, given.threads, given.steps, given.settle_seconds),
    }
    show(document, Console(markup=False, highlight=False))
    if given.json is not None:
        try:
            files.write(given.json, json.dumps(document, indent=1) + "\n")
        except OSError as error:
            raise ValueError(f"{given.json} cannot be written: {error.strerror or error}") from error
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=f"agspeed bench {FLAG}", description=__doc__, allow_abbrev=False)
    parser.add_argument(FLAG, required=True, metavar="MODEL", help="a workload, such as bert, or library/architecture")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of the step (default 1)")
    parser.add_argument(
        "--steps", type=int, default=10, metavar="N", help="least number of measured steps (default 10)"
    )
    parser.add_argument("--settle-seconds", type=float, default=900, metavar="S", help="time limit of compiling")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here, too")
    return parser


def _check(given: argparse.Namespace) -> None:
    for name in ("threads", "steps"):
        if getattr(given, name) < 1:
            raise ValueError(f"--{name} must be at least 1, but is {getattr(given, name)}")
    if given.json is not None and (given.json.is_dir() or not given.json.absolute().parent.is_dir()):
        raise ValueError(f"--json {given.json} is a folder, or its folder does not exist: name a file")


def measure(model: str, threads: int, steps: int, settle_seconds: float) -> dict[str, Any]:
    """Trains the model with the native backend and returns the result as data.

    Raises: ValueError in one sentence, as `find` and `native_regions`, for too few cores, and after `settle_seconds`.
    """
    with tempfile.TemporaryDirectory(prefix="agspeed-coverage-") as folder:
        machine.pin(threads)
        os.environ.update(worker.environment({"threads": threads, "cache_dir": folder}))
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler writes lines about itself
        import torch

        torch.set_num_threads(threads)
        training = find(model).build()
        steps = math.ceil(steps / training.period) * training.period
        head = {"machine": machine.fingerprint(), "model": model, "threads": threads, "steps": steps}
        return head | _measure(training, steps, settle_seconds, Path(folder))


def find(model: str) -> "Workload":
    """Returns the workload or architecture.

    Raises: ValueError if there is none, or if the native backend is missing.
    """
    from agspeed.backends import registry
    from benchmarks import workloads

    workload = workloads.load(model)
    if (reason := registry.candidate("native").unavailable()) is not None:
        raise ValueError(f"{FLAG} needs the native backend: {reason}")
    return workload


def _measure(training: "Training", steps: int, settle_seconds: float, folder: Path) -> dict[str, Any]:
    from benchmarks.measure.native_programs import recorded

    with recorded() as recording:
        try:
            with candidates.running(candidates.find(_CANDIDATE), training, folder, settle_seconds):
                regions = native_regions(candidates.reports(training))
                with _without_collections():
                    plain = _seconds_of_steps(training, steps)
                    times = attribute(_profiled(training, steps), recording.programs())[_WARM_UP:]
        except TimeoutError as error:
            raise ValueError(f"{error}: raise --settle-seconds") from error
    shares = shares_of(times)
    return {
        "step_ms": statistics.median(plain) * 1e3,
        "profiled_step_ms": sum(share.microseconds for share in shares.values()) / 1e3,
        "shares": {
            name: {"ms": share.microseconds / 1e3, "share": share.share, "meaning": CATEGORIES[name]}
            for name, share in shares.items()
        },
        "calls": _rows_of_calls(times),
        "regions": regions,
        "unknown_ranges": statistics.median(step.unknown_ranges for step in times),
    }


def native_regions(reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Counts the regions that run natively, and names the others.

    Args:
        reports: agspeed's report of each module.
    Raises: ValueError if no region runs natively, with the reasons.
    """
    regions = [region for report in reports.values() for region in report["regions"]]
    others = [f"{region['id']} runs {region['chosen']}" for region in regions if region["chosen"] != "native"]
    if len(others) == len(regions):
        lost = candidates.lost_backends(reports.values()).get("native", [])
        raise ValueError(f"the native backend runs no part of the model: {'; '.join(lost) or 'none was captured'}")
    return {"native": len(regions) - len(others), "others": others}


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _batch(training: "Training", index: int) -> Any:
    return training.batches[index % len(training.batches)]


def _seconds_of_steps(training: "Training", steps: int) -> list[float]:
    seconds = []
    for index in range(_WARM_UP + steps):
        started = time.perf_counter()
        training.step(_batch(training, index))
        seconds.append(time.perf_counter() - started)
    return seconds[_WARM_UP:]


def _profiled(training: "Training", steps: int) -> list[Event]:
    """Runs steps under the profiler. Returns its events of the CPU."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for index in range(_WARM_UP + steps):
            with torch.profiler.record_function(STEP):
                training.step(_batch(training, index))
    return [
        Event(event.name, event.thread, event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if not event.is_async
    ]


def _rows_of_calls(times: Sequence[StepTime]) -> list[dict[str, Any]]:
    return [
        {
            "operator": call.operator,
            "is_product": call.is_product,
            "count": count,
            "ms": share.microseconds / 1e3,
            "share": share.share,
            "dearest_result": call.result,
            "reason": call.reason,
        }
        for call, share, count in dearest_calls(times)
    ]


def show(document: dict[str, Any], console: Console) -> None:
    """Prints the shares and the dearest calls as tables."""
    document = fmt.printable(document)
    threads = fmt.plural(document["threads"], "thread")
    step, profiled = fmt.milliseconds(document["step_ms"]), fmt.milliseconds(document["profiled_step_ms"])
    console.print(f"{document['model']} with the native backend, {threads}, {document['machine']['cpu']}")
    console.print(f"A step takes {step}, and {profiled} under the profiler. Medians of {document['steps']} steps:")
    table = _table("", "Time", "Share", "")
    for name, row in document["shares"].items():
        table.add_row(name, fmt.milliseconds(row["ms"]), f"{row['share']:.1%}", row["meaning"])
    console.print(table)
    console.print("The dearest calls:" if document["calls"] else "No operator of a native region is a call.")
    table = _table("Operator", "Time", "Share", "Per step", "A call because")
    for row in document["calls"][:_NUM_DEAREST]:
        numbers = (fmt.milliseconds(row["ms"]), f"{row['share']:.1%}", f"{row['count']:g}")
        table.add_row(row["operator"], *numbers, row["reason"])
    if document["calls"]:
        console.print(table)
    for other in document["regions"]["others"]:
        console.print(f"Not native: {other}.")
    if document["unknown_ranges"]:
        console.print(f"{document['unknown_ranges']:g} runs of regions in a step fit no compiled program.")


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    for name in columns:
        is_number = name in ("Time", "Share", "Per step")
        table.add_column(name, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    return table
