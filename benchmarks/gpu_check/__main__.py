# SPDX-License-Identifier: Apache-2.0
"""Runs the parts, each in a process of its own with a time limit, and writes DIR/results.json after each.

Exit status: 0 if all parts that ran passed, 1 if one did not, 2 for wrong arguments, 3 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.parts import MINUTES, PARTS, Part

_MARK = "GPU_CHECK_RESULT "
_SHOWN = 2000
"""The results keep this number of characters of a failed part's output."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where results.json is written")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all parts together (default 10)")
    parser.add_argument("--dry-run", action="store_true", help="list the parts with their time limits")
    parser.add_argument("--part", choices=[part.name for part in PARTS], help="run this part here and print its result")
    parser.add_argument("--seconds", type=float, default=60.0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    share = arguments.minutes / MINUTES
    if arguments.dry_run:
        for part in PARTS:
            print(f"{part.name:<12} {share * part.seconds:5.0f} s  {part.what}")
        print(f"{'together':<12} {share * sum(part.seconds for part in PARTS):5.0f} s")
        return 0
    if (reason := _why_no_gpu()) is not None:
        print(f"nothing was checked: {reason}", file=sys.stderr)
        return 3
    if arguments.part is not None:
        part = next(part for part in PARTS if part.name == arguments.part)
        print(_MARK + json.dumps(part.load()(arguments.seconds)), flush=True)
        return 0
    if arguments.out is None:
        parser.error("--out DIR is needed")
    return run_all(arguments.out, share)


def run_all(out: Path, share: float) -> int:
    """Runs the parts within their shares of the time. A part may use the time that earlier parts left over."""
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    begun = time.monotonic()
    for number, part in enumerate(PARTS):
        until = share * sum(each.seconds for each in PARTS[: number + 1])
        limit = until - (time.monotonic() - begun)
        print(f"{part.name}: {part.what} (at most {limit:.0f} s)", flush=True)
        results[part.name] = found = run_part(part, limit)
        print(f"  {_verdict(found)}", flush=True)
        document = {"seconds": time.monotonic() - begun, "parts": results}
        (out / "results.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    bad = [name for name, found in results.items() if not found.get("holds", False)]
    print("all that ran holds" if not bad else f"does not hold: {', '.join(bad)}")
    return 1 if bad else 0


def run_part(part: Part, limit_s: float) -> dict[str, Any]:
    """Runs the part in a process of its own and returns its findings. A crash and a timeout are findings, too."""
    begun = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu_check",
        "--part",
        part.name,
        "--seconds",
        str(max(1.0, limit_s - 5)),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(limit_s, 1.0), check=False)
    except subprocess.TimeoutExpired:
        return {"holds": False, "why": f"it took longer than {limit_s:.0f} s"}
    line = next((line for line in done.stdout.splitlines() if line.startswith(_MARK)), None)
    if line is None:
        return {"holds": False, "why": f"it ended with code {done.returncode}", "output": done.stderr[-_SHOWN:]}
    return {**json.loads(line.removeprefix(_MARK)), "seconds": time.monotonic() - begun}


def _verdict(found: dict[str, Any]) -> str:
    left_out = f"; left out: {found['left_out']}" if found.get("left_out") else ""
    if found.get("holds"):
        return f"holds{left_out}"
    return f"DOES NOT HOLD: {found.get('why', found.get('figures'))}{left_out}"


def _why_no_gpu() -> str | None:
    from agspeed.devices import driver

    return driver.look().why_none or None


if __name__ == "__main__":
    sys.exit(main())
