# SPDX-License-Identifier: Apache-2.0
"""`agspeed config`: shows the effective settings, the origin of each one, and its meaning."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.table import Table
from rich.text import Text

from agspeed import config
from agspeed.cli.console import make_console
from agspeed.reporting import format as fmt

__all__ = ["add", "shown"]


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "config",
        help="show the effective settings and where each comes from",
        description="Shows every setting with its value and the place it came from. Keyword arguments of "
        "agspeed.optimize override all of them.",
    )
    parser.add_argument("--explain", action="store_true", help="show the meaning of each setting instead of its value")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    settings = config.resolve()
    for sentence in settings.warnings:
        print(fmt.printable(f"agspeed: {sentence}"), file=sys.stderr)
    if arguments.json:
        print(json.dumps(settings.to_dict(), indent=1))
        return 0
    make_console().print(_explanation() if arguments.explain else _values(settings))
    return 0


def _values(settings: config.Settings) -> Table:
    table = _table("Setting", "Value", "Came from")
    for name, entry in settings.to_dict().items():
        style = "dim" if entry["origin"] == "default" else "bold"
        value, origin = fmt.printable([shown(entry["value"]), entry["origin"]])
        table.add_row(Text(name), Text(value, style=style), Text(origin, style=style))
    return table


def _explanation() -> Table:
    table = _table("Setting", "Environment variable", "Must be", "Meaning")
    for setting in config.SETTINGS:
        table.add_row(Text(setting.name), Text(", ".join(setting.variables)), Text(setting.expects), Text(setting.doc))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def shown(value: Any) -> str:
    """Formats a value of `Settings.to_dict` for people."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) if isinstance(value, list) else str(value)
