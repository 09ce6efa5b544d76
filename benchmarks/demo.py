# SPDX-License-Identifier: Apache-2.0
"""`make demo`: trains a real model on real data, first eagerly, then with one added line, and shows the report.

    python -m benchmarks.demo [--workload char_gpt] [--seconds 240] [--report build/demo/report.html]

Both sessions start from the same weights and data. The speed-up is measured at the end, in alternating blocks of real
steps of both sessions in this process. A second run finds the decision in the cache and skips the tuning.
"""

import argparse
import time
from pathlib import Path

import torch

import agspeed
from benchmarks import workloads
from benchmarks.measure.pairing import Limits, compare
from benchmarks.workloads.base import Training

LIMITS = Limits(min_pairs=30, max_pairs=80, half_width=0.01, seconds=60.0)


def main() -> None:
    arguments = _arguments()
    workload = workloads.load(arguments.workload)
    print(f"{workload.name}: {workload.stresses}; torch {torch.__version__}, {torch.get_num_threads()} threads")
    eager, optimized = workload.build(), workload.build()

    print(f"\n1. eager: {_train(eager, workload.learn_steps)}")

    print("2. the same model after agspeed.optimize(model)")
    for module in optimized.modules.values():
        agspeed.optimize(module, mode="max")
    print(f"   {_train_until_tuned(optimized, arguments.seconds)}")
    print(f"   then: {_train(optimized, workload.learn_steps)}")

    speedup = compare(eager, optimized, LIMITS).speedup
    for name, module in optimized.modules.items():
        path = arguments.report.with_stem(f"{arguments.report.stem}-{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        report = agspeed.report(module)
        report.save(path)
        print(f"\n3. the report of {name}, also in {path}\n\n{report}")
    print(
        f"\ntraining steps of {workload.name} run {speedup.value:.2f} times as fast as eager "
        f"(95 % interval {speedup.low:.2f} to {speedup.high:.2f}, {speedup.count} pairs)"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description="Trains a model before and after.")
    parser.add_argument("--workload", default="char_gpt", choices=workloads.names(), metavar="NAME")
    parser.add_argument("--seconds", type=float, default=240.0, help="most seconds of training while tuning")
    parser.add_argument("--report", type=Path, default=Path("build/demo/report.html"))
    return parser.parse_args()


def _train(training: Training, steps: int) -> str:
    """Runs `steps` steps. Returns: how the loss moved and what a step took."""
    started = time.perf_counter()
    losses = [float(training.step(training.batches[step % len(training.batches)])) for step in range(steps)]
    milliseconds = (time.perf_counter() - started) / steps * 1e3
    return f"{steps} steps, loss {losses[0]:.3f} to {losses[-1]:.3f}, {milliseconds:.2f} ms per step"


def _train_until_tuned(training: Training, seconds: float) -> str:
    """Trains on while agspeed compiles and times candidates. Returns: what came of it."""
    started, steps = time.perf_counter(), 0
    modules = list(training.modules.values())
    while steps == 0 or any(agspeed.status(module) == "tuning" for module in modules):
        training.step(training.batches[steps % len(training.batches)])
        steps += 1
        if time.perf_counter() - started > seconds:
            break
    states = ", ".join(f"{status} ({status.reason})" for status in map(agspeed.status, modules))
    return f"{steps} steps in {time.perf_counter() - started:.1f} s of tuning while training: {states}"


if __name__ == "__main__":
    main()
