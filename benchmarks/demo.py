# SPDX-License-Identifier: Apache-2.0
"""The demonstration behind `make demo`: a real model trains on real data, eagerly, then optimized; then the report.

python -m benchmarks.demo [--workload NAME] [--steps N] [--html FILE]
"""

import argparse
import itertools
import sys
import time
from pathlib import Path

import agspeed
from agspeed.reporting.model import Report
from benchmarks import workloads
from benchmarks.measure import candidates
from benchmarks.measure.pairing import Limits, compare
from benchmarks.workloads.base import Training

_SETTLE_SECONDS = 900.0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.demo", description=__doc__.splitlines()[0])
    parser.add_argument("--workload", default="mlp_mixer", choices=workloads.names(), metavar="NAME")
    parser.add_argument("--steps", type=int, default=100, help="training steps before and after (default 100)")
    parser.add_argument("--html", type=Path, default=Path("build/demo-report.html"))
    given = parser.parse_args(argv)

    workload = workloads.load(given.workload)
    print(f"{workload.name}: {workload.stresses}\n")
    training, eager = workload.build(), workload.build()
    _train("eager", training, given.steps)

    print('\nmodel = agspeed.optimize(model, mode="max")   # tries candidates on real steps')
    for module in training.modules.values():
        agspeed.optimize(module, mode="max")
    settled = candidates.settle(candidates.CANDIDATES["agspeed"], training, _SETTLE_SECONDS)
    print(
        f"decided after {settled.steps} more steps and {settled.seconds:.0f} s: {', '.join(settled.chosen.values())}\n"
    )
    _train("optimized", training, given.steps)
    reports = {name: agspeed.report(module) for name, module in training.modules.items()}

    candidates.settle(candidates.CANDIDATES["eager"], eager, _SETTLE_SECONDS)
    result = compare(eager, training, Limits(max_pairs=160, seconds=60)).speedup
    print(
        f"\nstep time, eager / optimized, {result.count} pairs: {result.value:.2f} "
        f"({result.low:.2f} to {result.high:.2f})\n"
    )
    _show(reports, given.html)
    return 0


def _train(label: str, training: Training, steps: int) -> None:
    """Real steps with a line for every fifth of them."""
    batches = itertools.cycle(training.batches)
    for part in range(5):
        started, count = time.perf_counter(), max(1, steps // 5)
        loss = sum(float(training.step(next(batches))) for _ in range(count)) / count
        milliseconds = (time.perf_counter() - started) / count * 1e3
        print(
            f"{label:>10}  steps {part * count + 1:4}-{(part + 1) * count:<4}  "
            f"loss {loss:7.4f}  {milliseconds:8.2f} ms/step"
        )


def _show(reports: dict[str, Report], html: Path) -> None:
    """The reports of the training alone: the comparison after it ran other steps in between."""
    html.parent.mkdir(parents=True, exist_ok=True)
    for name, report in reports.items():
        print(report)
        path = html if len(reports) == 1 else html.with_stem(f"{html.stem}-{name}")
        report.save(str(path))
        print(f"\nthe same with plots: {path}")


if __name__ == "__main__":
    sys.exit(main())
