#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The benchmark runner: lists cases, runs them, prints tables. `python benchmarks/run.py --help`; see README.md.

This process starts one worker process at a time and only waits while it measures.
Importable as `benchmarks.run`: `run_cells` does the work, `main(argv)` is the command line.
"""

import argparse
import os
import shlex
import signal
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "python")]

from benchmarks import cases, cells, coverage, table  # noqa: E402 - the checkout must be importable first
from benchmarks.comm import sides, sizes  # noqa: E402
from benchmarks.measure import candidates  # noqa: E402

_CUT_SHORT = 128 + signal.SIGPIPE  # the exit status that a shell would report


def main(argv: list[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else argv
    try:
        if coverage.is_wanted(given):
            code = coverage.main(given)
        else:
            arguments = _parser().parse_args(given)
            code = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe; Python would report that again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CUT_SHORT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks/run.py", description="Benchmarks of agspeed on real training workloads."
    )
    parser.add_argument(
        coverage.FLAG,
        metavar="MODEL",
        help="show where the time of a step goes under the native backend; further options: --coverage --help",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="cases, with what they stress")
    listing.add_argument("--kind", help="only cases of this kind")
    listing.set_defaults(run=_list)

    running = commands.add_parser("run", help="measure cases and write a JSON result")
    running.add_argument("--case", nargs="+", default=[], metavar="NAME", help="default: all cases of the kind")
    running.add_argument("--kind", help="default: steady, or that of the cases named")
    running.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    running.add_argument("--candidates", default="eager,inductor,inductor-max-autotune,agspeed", metavar="A,B,...")
    running.add_argument("--pairs", type=int, default=100, help="least number of pairs per candidate (default 100)")
    running.add_argument("--max-pairs", type=int, default=240, help="stop there even if the interval is wide")
    running.add_argument("--half-width", type=float, default=0.007, help="stop when the interval is this narrow")
    running.add_argument("--seconds", type=float, help="time limit of one comparison (default 180; comm: per case)")
    running.add_argument(
        "--sizes", nargs="+", metavar="SIZE", help="message sizes, like 25MiB (comm, bytes); default: per case"
    )
    running.add_argument(
        "--sides", metavar="A,B,...", help="what to compare agspeed with (comm, bytes); default: per case"
    )
    running.add_argument("--workloads", nargs="+", metavar="NAME", help="of a case with several only these")
    running.add_argument(
        "--settle-seconds", type=float, default=900, help="time limit of compiling or tuning one candidate"
    )
    running.add_argument(
        "--steps", type=int, default=0, help="length of measured timelines (regret); default: per case"
    )
    running.add_argument("--cache-dir", help="keep compile caches here; default: a new empty folder")
    running.add_argument("--json", type=Path, help="result file; cells are appended to it as they finish")
    running.set_defaults(run=_run)

    printing = commands.add_parser("table", help="Markdown tables of a result file")
    printing.add_argument("json", type=Path)
    printing.set_defaults(run=lambda given: _print(table.render(cells.read(given.json))))

    comparing = commands.add_parser("compare", help="two result files, steady cell by cell")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.set_defaults(
        run=lambda given: _print(table.render_changes(cells.read(given.before), cells.read(given.after)))
    )

    sharing = commands.add_parser("share", help="re-measure the matrix-product share of workloads (1 thread)")
    sharing.add_argument("--case", nargs="+", default=[], metavar="NAME")
    sharing.set_defaults(run=_share)
    return parser


def _print(text: str) -> int:
    print(text)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    for case in cases.select([], arguments.kind):
        share = f"{case['gemm_share']:.0%}" if "gemm_share" in case else "-"
        print(f"{case['name']:32} {case['kind']:15} {share:>5}  {case['stresses']}")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    named_sides = arguments.sides.split(",") if arguments.sides else None
    for name in named_sides or []:
        sides.find(name)
    wanted = arguments.candidates.split(",")
    for name in wanted:
        candidates.find(name)
    settings = {
        "candidates": wanted,
        "limits": {
            "min_pairs": arguments.pairs,
            "max_pairs": max(arguments.max_pairs, arguments.pairs),
            "half_width": arguments.half_width,
            "seconds": 180.0 if arguments.seconds is None else arguments.seconds,
        },
        "settle_seconds": arguments.settle_seconds,
        "steps": arguments.steps,
        "sizes": [sizes.parse(size) for size in arguments.sizes or []],
        "seconds": arguments.seconds,
        "sides": named_sides,
    }
    selected = cases.select(arguments.case, arguments.kind or (None if arguments.case else "steady"))
    result = cells.run(
        [cases.narrowed(case, arguments.workloads) for case in selected] if arguments.workloads else selected,
        arguments.threads,
        settings,
        _command(sys.argv[1:]),
        arguments.cache_dir,
        arguments.json,
    )
    print(table.render(result))
    return 0 if all(cell["status"] == "ok" for cell in result["cells"]) else 1


def _command(words: list[str]) -> str:
    """Returns the command that measures the same again: the present one, without the path of its result."""
    if "--json" in words:
        at = words.index("--json")
        words = words[:at] + words[at + 2 :]
    return shlex.join(["python", "benchmarks/run.py", *words])


def _share(arguments: argparse.Namespace) -> int:
    """Prints the measured share beside the frozen one, which belongs to the workload and the machine of that time."""
    import torch

    from benchmarks import workloads
    from benchmarks.measure import gemm_share

    torch.set_num_threads(1)
    for case in cases.select(arguments.case, "steady"):
        measured = gemm_share.measure(workloads.load(case["workload"]).build())
        print(f"{case['name']:20} frozen {case['gemm_share']:.2f}  measured {measured:.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
