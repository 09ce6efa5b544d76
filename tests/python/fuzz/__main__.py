# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.python.fuzz --graphs 10000 --seed 0``: differential fuzzing of a backend against eager."""

from __future__ import annotations

import argparse
import sys
import time

from agspeed.backends import candidate
from tests.python.fuzz.campaign import Tally, run_campaign


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.python.fuzz", description=__doc__)
    parser.add_argument("--graphs", type=int, default=300, help="how many graphs (default 300)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first graph; each graph has its own")
    parser.add_argument("--backend", default="native", help="a candidate's name (default native)")
    options = parser.parse_args()
    reason = candidate(options.backend).unavailable()
    if reason:
        print(f"{options.backend} cannot run here: {reason}")
        return 2
    started, total = time.monotonic(), Tally()
    for first in range(options.seed, options.seed + options.graphs, 100):
        count = min(100, options.seed + options.graphs - first)
        found = run_campaign(options.backend, first, count)
        total += found
        print(f"{total} in {time.monotonic() - started:.0f} s", *found.failures, sep="\n\n", flush=True)
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
