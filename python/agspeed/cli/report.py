# SPDX-License-Identifier: Apache-2.0
"""`agspeed report show|html|compare`: shows, converts and compares report.json files."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from agspeed.cli.console import make_console
from agspeed.reporting import compare, model, terminal

__all__ = ["add"]


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="show, convert or compare reports",
        description="Looks at reports written by agspeed.report(model).save(...) or the setting `report`.",
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print a report in the terminal")
    show.add_argument("report", type=Path, help="a report.json")
    show.add_argument("--json", action="store_true", help="print the validated JSON instead")
    show.set_defaults(run=_show)
    html = actions.add_parser("html", help="write the report as one self-contained HTML file")
    html.add_argument("report", type=Path, help="a report.json")
    html.add_argument("output", type=Path, nargs="?", help="the file to write (default: beside the report)")
    html.set_defaults(run=_html)
    comparison = actions.add_parser("compare", help="show two reports side by side")
    comparison.add_argument("before", type=Path)
    comparison.add_argument("after", type=Path)
    form = comparison.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--html", type=Path, metavar="FILE", help="write a page with both timelines instead")
    comparison.set_defaults(run=_compare)


def _show(arguments: argparse.Namespace) -> int:
    report = model.load(arguments.report).to_dict()
    if arguments.json:
        print(json.dumps(report, indent=1))
    else:
        terminal.print_report(report, make_console())
    return 0


def _html(arguments: argparse.Namespace) -> int:
    output = arguments.output or arguments.report.with_suffix(".html")
    from agspeed.reporting.html.page import render

    print(model.write_page(output, render(model.load(arguments.report).to_dict())))
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    before, after = model.load(arguments.before).to_dict(), model.load(arguments.after).to_dict()
    if arguments.html is not None:
        from agspeed.reporting.html.compare_page import render

        print(model.write_page(arguments.html, render(before, after)))
    elif arguments.json:
        rows = {"figures": compare.compare(before, after), "conditions": compare.differing_conditions(before, after)}
        print(json.dumps({name: [row._asdict() for row in found] for name, found in rows.items()}, indent=1))
    else:
        make_console().print(compare.view(before, after))
    return 0
