# SPDX-License-Identifier: Apache-2.0
"""`agspeed cache ls|prune|export|import|verify`: looks after decisions and compiled kernels."""

from __future__ import annotations

import argparse
import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from agspeed import config
from agspeed.cli import cache_archive as archive
from agspeed.cli import cache_files as files
from agspeed.cli.console import make_console
from agspeed.errors import UserError
from agspeed.reporting import format as fmt

__all__ = ["add"]

_DAY_S = 86_400
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "cache",
        help="list, prune, move or verify what tuning has stored",
        description="Looks after the cache directory: decisions (tuning.sqlite) and compiled kernels (kernels/).",
    )
    parser.add_argument("--cache-dir", type=Path, help="the directory (default: the setting cache_dir)")
    shared = argparse.ArgumentParser(add_help=False)  # also understood behind the action
    shared.add_argument("--cache-dir", type=Path, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="list decisions and kernels", parents=[shared])
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=_list)
    pruning = actions.add_parser(
        "prune", help="remove what has not been used for long, one model, or everything", parents=[shared]
    )
    pruning.add_argument("--days", type=float, default=90.0, help="remove what was last used longer ago (default 90)")
    pruning.add_argument(
        "--max-size", type=_size, metavar="SIZE", help="then remove oldest kernels down to, e.g., 500M"
    )
    pruning.add_argument(
        "--graph", metavar="G", help="remove the decisions about one model, by its graph as `ls` shows it, and no more"
    )
    pruning.add_argument("--all", action="store_true", help="remove every decision and kernel")
    pruning.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    pruning.set_defaults(run=_prune)
    exporting = actions.add_parser("export", help="write decisions and kernels to one archive", parents=[shared])
    exporting.add_argument("archive", type=Path)
    exporting.set_defaults(run=_export)
    importing = actions.add_parser(
        "import",
        help="merge an archive into the cache",
        description="Merges an archive after checking all of it. Kernels are machine code: import only archives from "
        "people whose programs you would run, or pass --decisions-only.",
        parents=[shared],
    )
    importing.add_argument("archive", type=Path)
    importing.add_argument("--decisions-only", action="store_true", help="leave the kernels out")
    importing.set_defaults(run=_import)
    verifying = actions.add_parser(
        "verify", help="check owners, modes and checksums; exit code 1 if any is wrong", parents=[shared]
    )
    verifying.add_argument("--json", action="store_true", help="print JSON")
    verifying.set_defaults(run=_verify)


def _folder(arguments: argparse.Namespace) -> Path:
    given: Path | None = arguments.cache_dir
    return given.expanduser().absolute() if given is not None else config.resolve().cache_dir


def _list(arguments: argparse.Namespace) -> int:
    folder = _folder(arguments)
    decisions = [decision for decision, problem in files.read_decisions(folder) if problem is None]
    kernels = files.kernel_paths(folder)
    total = sum(path.stat().st_size for path in kernels)
    if arguments.json:
        rows = [_decision_json(decision) for decision in decisions]
        print(json.dumps({"directory": str(folder), "decisions": rows, "kernels": len(kernels), "kernel_bytes": total}))
        return 0
    console = make_console()
    if decisions:
        console.print(_decision_table(decisions))
    decided, compiled = fmt.plural(len(decisions), "decision"), fmt.plural(len(kernels), "kernel")
    console.print(Text(f"{folder}: {decided}, {compiled} of {fmt.size(total)}"))
    return 0


def _decision_json(decision: files.Decision) -> dict[str, Any]:
    parsed = {"key": json.loads(decision.key), "record": json.loads(decision.record)}
    return parsed | {"created": decision.created, "used": decision.used, "uses": decision.uses}


def _decision_table(decisions: list[files.Decision]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("Decision", "Graph", "Device", "Threads", "Last used", "Uses", "Reason"):
        table.add_column(column, overflow="fold", justify="right" if column == "Uses" else "left")
    for decision in decisions:
        key, record = json.loads(decision.key), json.loads(decision.record)
        cells = [
            record["arm"] or "unfinished",
            str(key["graph"])[:12],
            key["device"],
            key["threads"],
            _day(decision.used),
            decision.uses,
        ]
        table.add_row(*(Text(fmt.printable(str(cell))) for cell in [*cells, record.get("reason", "")]))
    return table


def _prune(arguments: argparse.Namespace) -> int:
    if arguments.days < 0:
        raise UserError(f"--days must not be negative, and is {arguments.days:g}.")
    folder = _folder(arguments)
    stored = [decision for decision, problem in files.read_decisions(folder) if problem is None]
    kernels: list[tuple[Path, int]] = []
    if arguments.graph is not None:
        old = _of_graph(stored, arguments.graph)
    else:
        oldest = float("inf") if arguments.all else time.time() - arguments.days * _DAY_S
        kernels = list(_old_kernels(folder, oldest, arguments.max_size))
        old = [decision.key for decision in stored if decision.used < oldest]
    if not arguments.dry_run:
        _remove(folder, old, kernels)
    verb = "Would remove" if arguments.dry_run else "Removed"
    freed = sum(size for _, size in kernels)
    print(f"{verb} {fmt.plural(len(old), 'decision')} and {fmt.plural(len(kernels), 'kernel')} ({fmt.size(freed)}).")
    return 0


def _of_graph(decisions: list[files.Decision], graph: str) -> list[str]:
    """Keys of the decisions about the graph whose name begins so. Raises: UserError where there is none."""
    named = [decision.key for decision in decisions if str(json.loads(decision.key)["graph"]).startswith(graph)]
    if not graph or not named:
        raise UserError(f"--graph {graph}: no stored decision is about it; `agspeed cache ls` lists those there are.")
    return named


def _old_kernels(folder: Path, oldest: float, max_size: int | None) -> Iterator[tuple[Path, int]]:
    """Kernels last used before `oldest`, then the least recently used until the rest fits `max_size`."""
    found = sorted(((path, path.stat()) for path in files.kernel_paths(folder)), key=lambda item: item[1].st_mtime)
    remaining = sum(info.st_size for _, info in found)
    for path, info in found:
        if info.st_mtime < oldest or (max_size is not None and remaining > max_size):
            remaining -= info.st_size
            yield path, info.st_size


def _remove(folder: Path, keys: list[str], kernels: list[tuple[Path, int]]) -> None:
    for path, _ in kernels:
        path.unlink(missing_ok=True)
    if keys:
        with closing(sqlite3.connect(folder / files.DATABASE, timeout=5)) as database, database:
            database.executemany("DELETE FROM decisions WHERE key = ?", [(key,) for key in keys])


def _export(arguments: argparse.Namespace) -> int:
    written = archive.export(_folder(arguments), arguments.archive)
    print(f"Wrote {_summary(written)} to {arguments.archive}.")
    return 0


def _import(arguments: argparse.Namespace) -> int:
    contents = archive.read(arguments.archive)
    folder = _folder(arguments)
    kernels = {} if arguments.decisions_only else contents.kernels
    files.create_private(folder)
    reason = files.distrust(folder)
    if reason is not None:
        raise UserError(f"The cache directory {str(folder)!r} {reason}: agspeed would not read it. Choose another one.")
    merged = files.write_decisions(folder, contents.decisions) if contents.decisions else 0
    if kernels:
        files.create_private(folder / files.KERNELS)
    for name, data in kernels.items():
        files.write_private(folder / files.KERNELS / name, data)
    print(f"Read {_summary(contents)}; {merged:,} of the decisions were new or newer, {len(kernels):,} kernels copied.")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    folder = _folder(arguments)
    problems = list(_problems(folder))
    if arguments.json:
        print(json.dumps({"directory": str(folder), "problems": [problem._asdict() for problem in problems]}))
    else:
        for problem in problems:
            print(fmt.printable(f"{problem.where} {problem.what}"))
        print(f"{folder}: " + (fmt.plural(len(problems), "problem") if problems else "everything checks out"))
    return 1 if problems else 0


def _problems(folder: Path) -> Iterator[files.Problem]:
    database = folder / files.DATABASE
    for path in (folder, folder / files.KERNELS, database, *files.kernel_paths(folder)):
        if os.path.lexists(path) and (reason := files.distrust(path)) is not None:
            yield files.Problem(str(path), f"{reason}: agspeed ignores it")
    try:
        for decision, reason in files.read_decisions(folder):
            if reason is not None:
                yield files.Problem(f"{database}: the decision {decision.key[:60]!r}", reason)
    except UserError as error:
        yield files.Problem(str(database), f"cannot be used: {error}")
    for path in files.kernel_paths(folder):
        if (reason := files.check_kernel(path.name, path.read_bytes())) is not None:
            yield files.Problem(str(path), reason)


def _summary(contents: archive.Contents) -> str:
    return f"{fmt.plural(len(contents.decisions), 'decision')} and {fmt.plural(len(contents.kernels), 'kernel')}"


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write, for example, 500M or 2G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _day(seconds: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
