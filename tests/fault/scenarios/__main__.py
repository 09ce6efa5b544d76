# SPDX-License-Identifier: Apache-2.0
"""Runs fault scenarios and prints their results.

    PYTHONPATH=python python -m tests.fault.scenarios --count 100 --row N1 --row N2 --json out.json

Every trial draws its moment, host and rail from a seed of its own, which is printed if something goes wrong. The load
of the machine adds randomness that no seed controls. Exits with 1 if a result was wrong, a trial hung, an error was not
the expected one, or a fault did not show in the counters.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import time
from pathlib import Path

from agspeed import netbed
from tests.fault.scenarios import rank
from tests.fault.scenarios.results import Result, table
from tests.fault.scenarios.rows import SCENARIOS
from tests.fault.scenarios.runner import Stage, run


def main() -> int:
    arguments = _parse()
    reason = netbed.unavailable()
    if reason:
        print(reason, file=sys.stderr)
        return 2
    rank.load_once()
    print(f"seed {arguments.seed}", flush=True)
    loads = [os.getloadavg()[0]]
    started = time.monotonic()
    results: list[Result] = []
    with contextlib.closing(Stage()) as stage:
        for scenario in SCENARIOS:
            if arguments.row and scenario.row not in arguments.row:
                continue
            results.append(run(stage, scenario, arguments.count, arguments.seed))
            loads.append(os.getloadavg()[0])
            print(f"{time.monotonic() - started:6.0f} s  {scenario.row} {scenario.fault}", file=sys.stderr, flush=True)
            if arguments.json:
                _write(arguments.json, arguments.seed, loads, results)
    print(table(results))
    print(f"{os.cpu_count()} processors, load average {min(loads):.1f} to {max(loads):.1f}")
    return 0 if all(result.is_good for result in results) else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.scenarios", description="Runs fault scenarios.")
    rows = sorted({scenario.row for scenario in SCENARIOS})
    parser.add_argument("--row", action="append", choices=rows, help="only this row; may be repeated")
    parser.add_argument("--count", type=int, default=10, help="trials of each scenario (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of all that is drawn by chance")
    parser.add_argument("--json", type=Path, help="a file for the results, value by value")
    return parser.parse_args()


def _write(path: Path, seed: int, loads: list[float], results: list[Result]) -> None:
    document = {
        "seed": seed,
        "processors": os.cpu_count(),
        "load_averages": [round(load, 2) for load in loads],
        "rows": [result.to_json() for result in results],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
