# SPDX-License-Identifier: Apache-2.0
"""Runs cells (case x thread count) in worker processes and keeps the JSON result.

Workers run strictly one after another, because two at once would disturb each other's timings. A worker that crashes or
runs too long makes a failed cell with its reason; the run goes on. The result file is valid after every cell.
"""

import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import kinds

VERSION = 1
ROOT = Path(__file__).resolve().parents[1]
_WORKER_SECONDS = 3600
_EXIT_SECONDS = 20


def run(
    cases: list[dict[str, Any]],
    thread_counts: list[int],
    settings: dict[str, Any],
    command: str,
    cache_dir: str | None,
    output: Path | None,
) -> dict[str, Any]:
    """Measures every case at every thread count it allows and returns the result, also written to `output`."""
    result: dict[str, Any] = {
        "version": VERSION,
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": _fingerprint(),
        "settings": settings,
        "cells": [],
    }
    with tempfile.TemporaryDirectory(prefix="agspeed-bench-") as folder:
        for case in cases:
            for threads in case.get("threads", thread_counts):
                cell = _cell(case, threads, settings, Path(cache_dir or folder), Path(folder))
                result["cells"].append(cell)
                print(
                    f"{case['name']} at {threads} threads: {cell['status']} {cell.get('reason', '')}".rstrip(),
                    file=sys.stderr,
                )
                if output:
                    output.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return result


def read(path: Path) -> dict[str, Any]:
    """Reads a result file. Raises ValueError if it is not one."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a readable result file: {error}") from error
    if not isinstance(result, dict) or result.get("version") != VERSION:
        raise ValueError(f"{path} is not a benchmark result of version {VERSION}")
    return result


def _cell(case: dict[str, Any], threads: int, settings: dict[str, Any], caches: Path, scratch: Path) -> dict[str, Any]:
    head = {"case": case["name"], "kind": case["kind"], "stresses": case["stresses"], "threads": threads}
    head |= {key: case[key] for key in ("workload", "gemm_share") if key in case}
    kind, started = kinds.load(case["kind"]), time.monotonic()
    folder, results = caches / case["name"] / f"threads-{threads}", []
    try:
        for row in kind.plan(case, threads, settings):
            if row.get("cache") == "fresh":
                folder = Path(tempfile.mkdtemp(prefix="cache-", dir=scratch))
            spec = row | {"case": case, "threads": threads, "settings": settings, "cache_dir": str(folder)}
            results.append(_work(spec, scratch))
        body = kind.summarize(case, results)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        body = {"status": "failed", "reason": str(error)}
    return head | body | {"wall_seconds": round(time.monotonic() - started, 1)}


def _work(spec: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Runs one worker. If it fails, prints its stderr and raises RuntimeError with the last line of it."""
    spec_path, result_path = scratch / "spec.json", scratch / "result.json"
    result_path.unlink(missing_ok=True)
    Path(spec["cache_dir"]).mkdir(parents=True, exist_ok=True)
    spec_path.write_text(json.dumps(spec), encoding="utf-8")
    paths = [str(ROOT), str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    worker = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.worker", str(spec_path), str(result_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, errors = worker.communicate(timeout=_WORKER_SECONDS)
    except BaseException:
        _end(worker)
        raise
    if worker.returncode != 0 or not result_path.exists():
        print(errors[-4000:], file=sys.stderr)
        last = (errors.strip().splitlines() or ["it wrote nothing"])[-1]
        raise RuntimeError(f"the worker ended with status {worker.returncode}: {last}")
    return json.loads(result_path.read_text(encoding="utf-8"))


def _end(worker: subprocess.Popen[str]) -> None:
    """Ends a worker. It gets time to remove what it built, such as network namespaces, before it is killed."""
    worker.terminate()
    try:
        worker.communicate(timeout=_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.communicate()


def _fingerprint() -> dict[str, Any]:
    """The machine's fingerprint, taken in a process of its own so that this one stays free of torch."""
    code = "import json; from benchmarks.measure.machine import fingerprint; print(json.dumps(fingerprint()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
