# SPDX-License-Identifier: Apache-2.0
"""`agspeed cache ls|prune|export|import|verify`: manages stored decisions and compiled kernels."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from agspeed import config
from agspeed.cli import cache_archive as archive
from agspeed.cli import cache_files as files
from agspeed.cli.console import make_console
from agspeed.config.paths import DATABASE
from agspeed.errors import UserError
from agspeed.files import make_folder, write
from agspeed.reporting import format as fmt
from agspeed.tuning.decision_table import Decision, read_decisions, remove_decisions, write_decisions

__all__ = ["add"]

_DAY_S = 86_400
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "cache",
        help="list, prune, move or verify the stored results of tuning",
        description="Looks after the cache directory: decisions (tuning.sqlite), compiled kernels (kernels/) and the "
        "files of torch's compiler for agspeed (inductor/).",
    )
    parser.add_argument("--cache-dir", type=Path, help="the directory (default: the setting cache_dir)")
    shared = argparse.ArgumentParser(add_help=False)  # the option is also valid after the action
    shared.add_argument("--cache-dir", type=Path, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="list decisions and kernels", parents=[shared])
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=_list)
    pruning = actions.add_parser(
        "prune", help="remove entries that were not used for long, one model, or everything", parents=[shared]
    )
    pruning.add_argument(
        "--days", type=float, default=90.0, help="remove entries that were last used longer ago (default 90)"
    )
    pruning.add_argument(
        "--max-size", type=_size, metavar="SIZE", help="then remove oldest compiled files down to, e.g., 500M"
    )
    pruning.add_argument(
        "--graph", metavar="G", help="remove the decisions about one model, by its graph as `ls` shows it, and no more"
    )
    pruning.add_argument(
        "--all", action="store_true", help="remove every decision, kernel and file of torch's compiler"
    )
    pruning.add_argument("--dry-run", action="store_true", help="only print the entries that would be removed")
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
    try:
        folder = given.expanduser().absolute() if given is not None else config.resolve().cache_dir
    except RuntimeError:
        raise UserError(f"--cache-dir {given}: there is no such home; name the directory without ~.") from None
    if os.path.lexists(folder) and not folder.is_dir():
        raise UserError(f"The cache directory {str(folder)!r} is not a directory: name one with --cache-dir.")
    return folder


def _list(arguments: argparse.Namespace) -> int:
    folder = _folder(arguments)
    decisions = [decision for decision, problem in read_decisions(folder) if problem is None]
    kernels = files.kernel_paths(folder)
    compiled = files.compiler_files(folder)
    total, compiled_total = (sum(path.stat().st_size for path in paths) for paths in (kernels, compiled))
    if arguments.json:
        document: dict[str, Any] = {
            "directory": str(folder),
            "decisions": [_decision_json(decision) for decision in decisions],
        }
        document |= {"kernels": len(kernels), "kernel_bytes": total}
        print(json.dumps(document | {"compiler_files": len(compiled), "compiler_bytes": compiled_total}))
        return 0
    console = make_console()
    if decisions:
        console.print(_decision_table(decisions))
    decided, made = fmt.plural(len(decisions), "decision"), fmt.plural(len(kernels), "kernel")
    others = f", {_compiler_files(len(compiled))} of {fmt.size(compiled_total)}" if compiled else ""
    console.print(Text(f"{folder}: {decided}, {made} of {fmt.size(total)}{others}"))
    return 0


def _decision_json(decision: Decision) -> dict[str, Any]:
    key, record = decision.parsed()
    return {"key": key, "record": record, "created": decision.created, "used": decision.used, "uses": decision.uses}


def _decision_table(decisions: list[Decision]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("Decision", "Graph", "Device", "Threads", "Last used", "Uses", "Reason"):
        table.add_column(column, overflow="fold", justify="right" if column == "Uses" else "left")
    for decision in decisions:
        key, record = decision.parsed()
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
    if not arguments.days >= 0:
        raise UserError(f"--days must be a number that is not negative, and is {arguments.days:g}.")
    folder = _folder(arguments)
    stored = [decision for decision, problem in read_decisions(folder) if problem is None]
    old_files: list[tuple[Path, int]] = []
    if arguments.graph is not None:
        old = _of_graph(stored, arguments.graph)
    else:
        oldest = float("inf") if arguments.all else time.time() - arguments.days * _DAY_S
        old_files = list(_old_files(folder, oldest, arguments.max_size))
        old = [decision.key for decision in stored if decision.used < oldest]
    if not arguments.dry_run:
        _remove(folder, old, old_files)
    verb = "Would remove" if arguments.dry_run else "Removed"
    sizes = [size for path, size in old_files if path.parent == folder / files.KERNELS]
    print(f"{verb} {fmt.plural(len(old), 'decision')} and {fmt.plural(len(sizes), 'kernel')} ({fmt.size(sum(sizes))}).")
    if others := len(old_files) - len(sizes):
        print(f"{verb} {_compiler_files(others)} ({fmt.size(sum(size for _, size in old_files) - sum(sizes))}).")
    return 0


def _compiler_files(count: int) -> str:
    return f"{fmt.plural(count, 'file')} of torch's compiler"


def _of_graph(decisions: list[Decision], graph: str) -> list[str]:
    """Returns the keys of the decisions about graphs whose name begins with `graph`. Raises: UserError if there are
    none."""
    named = [decision.key for decision in decisions if str(decision.parsed()[0]["graph"]).startswith(graph)]
    if not graph or not named:
        raise UserError(f"--graph {graph}: no stored decision is about it; `agspeed cache ls` lists those there are.")
    return named


def _old_files(folder: Path, oldest: float, max_size: int | None) -> Iterator[tuple[Path, int]]:
    """Yields kernels and files of torch's compiler that were last used before `oldest`, then the least recently used
    ones until the rest fits `max_size`."""
    found = [(path.stat().st_mtime, path.stat().st_size, path) for path in files.kernel_paths(folder)]
    for path in files.compiler_files(folder):  # torch's compiler does not mark a file as used
        info = path.stat()
        found.append((max(info.st_mtime, info.st_atime), info.st_size, path))
    remaining = sum(size for _, size, _ in found)
    for used, size, path in sorted(found):
        if used < oldest or (max_size is not None and remaining > max_size):
            remaining -= size
            yield path, size


def _remove(folder: Path, keys: list[str], old_files: list[tuple[Path, int]]) -> None:
    for path, _ in old_files:
        path.unlink(missing_ok=True)
    for emptied in sorted({path.parent for path, _ in old_files} - {folder / files.KERNELS}, reverse=True):
        with contextlib.suppress(OSError):
            emptied.rmdir()
    if keys:
        remove_decisions(folder, keys)


def _export(arguments: argparse.Namespace) -> int:
    written = archive.export(_folder(arguments), arguments.archive)
    print(f"Wrote {_summary(written)} to {arguments.archive}.")
    return 0


def _import(arguments: argparse.Namespace) -> int:
    contents = archive.read(arguments.archive)
    folder = _folder(arguments)
    kernels = {} if arguments.decisions_only else contents.kernels
    make_folder(folder)
    reason = files.distrust(folder)
    if reason is not None:
        raise UserError(f"The cache directory {str(folder)!r} {reason}: agspeed would not read it. Choose another one.")
    merged = write_decisions(folder, contents.decisions) if contents.decisions else 0
    if kernels:
        make_folder(folder / files.KERNELS)
    for name, data in kernels.items():
        write(folder / files.KERNELS / name, data)
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
    database = folder / DATABASE
    for path in (folder, folder / files.KERNELS, database, *files.kernel_paths(folder)):
        if os.path.lexists(path) and (reason := files.distrust(path)) is not None:
            yield files.Problem(str(path), f"{reason}: agspeed ignores it")
    try:
        for decision, reason in read_decisions(folder):
            if reason is not None:
                yield files.Problem(f"{database}: the decision {decision.key[:60]!r}", reason)
    except UserError as error:
        yield files.Problem(str(database), f"cannot be used: {error}")
    for path in files.kernel_paths(folder):
        if (reason := files.check_kernel(path.name, files.read_kernel(path))) is not None:
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
