# SPDX-License-Identifier: Apache-2.0
"""`agspeed comm inspect`: shows what the ranks on this host wait for, and the likely cause of a hang."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from agspeed.inspection import jobs_of
from agspeed.inspection.causes import Job, causes
from agspeed.inspection.text import lines
from agspeed.reporting import format as fmt

__all__ = ["add"]

_EPILOG = """\
examples:
  agspeed comm inspect                 all ranks of yours on this host
  agspeed comm inspect 4711            the job of process 4711, a rank or its launcher
  agspeed comm inspect --json          the same for a program

The job goes on meanwhile, and nothing in it changes. Ranks answer over a local socket, to their own user and to root.
Run the command on each host of the job: a rank that other hosts wait for shows what it does on its own host only."""


def add(actions: Any) -> None:
    inspect = actions.add_parser(
        "inspect",
        help="show what the ranks on this host wait for",
        description="Shows what each rank on this host waits for, since when and why, while the job runs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    inspect.add_argument("process", nargs="?", type=int, metavar="PID", help="a rank, or its launcher")
    inspect.add_argument("--job", metavar="NAME", help="only this job, as the command names it")
    inspect.add_argument("--json", action="store_true", help="print JSON instead of text")
    inspect.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    found = jobs_of(arguments.process, arguments.job)
    if arguments.json:
        print(
            json.dumps(
                {"kind": "agspeed.comm_inspect", "version": 1, "jobs": [_document(job) for job in found]}, indent=1
            )
        )
        return 0
    for index, job in enumerate(found):
        if index > 0:
            print()
        for line in lines(job):
            print(fmt.printable(line))
    return 0


def _document(job: Job) -> dict[str, Any]:
    ranks = []
    for number, answer in sorted(job.answers.items()):
        process = job.processes.get(number)
        ranks.append(
            {
                "rank": number,
                "process": answer.point.process,
                "doing": None if process is None else process.doing,
                "problem": answer.problem or None,
                "answer": None if answer.rank is None else dataclasses.asdict(answer.rank),
            }
        )
    return {"job": job.name, "world_size": job.world_size, "ranks": ranks, "causes": causes(job)}
