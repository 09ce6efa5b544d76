# SPDX-License-Identifier: Apache-2.0
"""`agspeed doctor`: is everything here that agspeed needs? Every failed line comes with its remedy."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.text import Text

import agspeed
from agspeed.cli import checks, net_checks
from agspeed.cli.console import make_console
from agspeed.reporting import environment

__all__ = ["add"]

_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "bold red")}


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check the installation and this machine",
        description="Checks the installation and this machine. Exit code 0: nothing failed (warnings may remain); "
        "1: something failed, and its line says what to do.",
    )
    parser.add_argument(
        "--compile", action="store_true", help="also optimize and train a tiny model in a child process"
    )
    parser.add_argument(
        "--net", action="store_true", help="also explain which network interfaces jobs use, and what slows them down"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for a bug report")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    wanted = [*checks.CHECKS, *(net_checks.NET_CHECKS if arguments.net else ())]
    wanted += [checks.compile_canary] if arguments.compile else []
    found: list[checks.Check] = []
    console = make_console()
    for check in wanted:
        for result in check():
            found.append(result)
            if not arguments.json:
                console.print(_line(result), soft_wrap=True)
    if arguments.json:
        print(json.dumps(_document(found), indent=1))
    else:
        console.print(_verdict(found), soft_wrap=True)
    return 1 if any(result.status == "fail" for result in found) else 0


def _line(check: checks.Check) -> Text:
    mark, style = _MARKS[check.status]
    text = Text.assemble((f"{mark} ", style), (f"{check.name:<17}", "bold"), check.detail)
    if check.remedy:
        text.append(f"\n  fix: {check.remedy}", style="cyan")
    return text


def _verdict(found: list[checks.Check]) -> Text:
    failed = sum(check.status == "fail" for check in found)
    warned = sum(check.status == "warn" for check in found)
    if failed:
        return Text(f"{failed} of {len(found)} checks failed.", style="bold red")
    return Text(
        "Everything works." if not warned else f"Everything works; {warned} of {len(found)} lines could be better."
    )


def _document(found: list[checks.Check]) -> dict[str, Any]:
    return {
        "agspeed": agspeed.__version__,
        "versions": environment.versions(),
        "machine": environment.machine(),
        "checks": [check._asdict() for check in found],
    }
