#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the C++, lit and Python tests of a built tree one after another, streams their output and prints the totals.
Each suite keeps every core busy.

Tests that need the parts of a cluster are left out (`make test-cluster`, `make test-kube`,
`make test-container`). `--fast` also leaves out
the tests that are marked slow or need a browser. `--smoke` runs the Python tests that are marked smoke. Every suite
runs even when an earlier one failed. Results go to `test-results` in the build folder, where summarize.py reads them.
`make test`, `make test-fast` and `make test-smoke` call this script.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from summarize import BUILD, ROOT, summarize

RESULTS = BUILD / "test-results"


def commands(fast: bool, smoke: bool) -> dict[str, list[str]]:
    jobs = str(os.cpu_count() or 1)
    ctest = ["ctest", "--test-dir", str(BUILD), "--output-on-failure", "--no-tests=error", "--parallel", jobs]
    lit = [str(Path(sys.executable).with_name("lit")), "--verbose", "--workers", jobs, "tests"]
    workers = str((os.cpu_count() or 1) + 1)  # more than cores, because many tests wait for a network or a clock
    pytest = [sys.executable, "-m", "pytest", "tests", "--numprocesses", workers, "--dist", "loadfile"]
    pytest += ["--no-loadscope-reorder"]  # tests/conftest.py has an order
    marked = "not cluster and not container and not kube"
    if fast:
        ctest += ["--label-exclude", "slow"]
        marked += " and not slow and not chromium"
    if smoke:
        return {"Python": [*pytest, "-m", "smoke", f"--junitxml={RESULTS / 'pytest.xml'}"]}
    return {
        "C++": [*ctest, "--output-junit", str(RESULTS / "ctest.xml")],
        "lit": [*lit, "--xunit-xml-output", str(RESULTS / "lit.xml")],
        "Python": [*pytest, "-m", marked, f"--junitxml={RESULTS / 'pytest.xml'}"],
    }


def run(suite: str, command: list[str], environment: dict[str, str]) -> int:
    print(f"--- {suite} tests: {' '.join(command[:4])} ...", flush=True)
    started = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=False).returncode
    print(f"--- {suite} tests: exit code {code} after {time.monotonic() - started:.0f} s", flush=True)
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="leave out slow tests and those that need a browser")
    parser.add_argument("--smoke", action="store_true", help="only the tests of the main paths")
    given = parser.parse_args()
    shutil.rmtree(RESULTS, ignore_errors=True)
    (RESULTS / "gtest").mkdir(parents=True)
    environment = {
        **os.environ,
        "GTEST_OUTPUT": f"xml:{RESULTS / 'gtest'}/",
        "PYTHONPATH": str(ROOT / "python"),
        # Test processes have more threads than there are cores, so a thread that waits for others must not spin.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    codes = {suite: run(suite, command, environment) for suite, command in commands(given.fast, given.smoke).items()}
    (RESULTS / "exit-codes.json").write_text(json.dumps(codes))
    return summarize([BUILD])


if __name__ == "__main__":
    sys.exit(main())
