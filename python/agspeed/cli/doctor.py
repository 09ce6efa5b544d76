# SPDX-License-Identifier: Apache-2.0
"""`agspeed doctor`: checks that this machine has everything that agspeed needs. Every failed line names its remedy."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Iterable
from typing import Any

from rich.text import Text

import agspeed
from agspeed.cli import bug_report, checks, gpu_checks, nccl_checks, net_checks, net_peers, net_ranks
from agspeed.cli.console import make_console
from agspeed.errors import UserError
from agspeed.netprobe import Survey
from agspeed.reporting import environment
from agspeed.reporting import format as fmt

__all__ = ["add"]

_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "bold red")}
_DESCRIPTION = """\
Checks the installation and this machine, and with --net the network between the hosts of a job: rail by rail (a rail is
a network interface that carries jobs) which hosts answer, the round trip, the rate, the largest packet, ports, whether
the job keys are equal (they are never sent), and how far clocks are apart."""
_EPILOG = """\
examples:
  agspeed doctor --net                                      this host's interfaces
  agspeed doctor --listen                                   on the other hosts, first
  agspeed doctor --peer node1,node2,node3                   from one host to these, and back
  torchrun --nnodes 4 --nproc-per-node 1 --node-rank N --master-addr node0 --master-port 29500 \\
      -m agspeed doctor --net                               on each of four hosts (N = 0 to 3): from all to all

The file of --report is Markdown, and its beginning says what it contains. Placeholders replace names of users and
hosts, paths, addresses, secrets, and values of variables that are no settings of agspeed. Read the file before you
attach it to an issue.

exit code: 0 if no check failed (lines with ! may remain), 1 if a check failed, and its line names the remedy; 2 for
wrong arguments, or if the file of --report cannot be written. Under torchrun all hosts end with the same code, and the
first one prints. Looking at hosts takes 10 s at most, however they behave, and then about a second for each of them."""

_TO_STDOUT = "-"
_ONE_HOST = "--report describes this host alone, in one text: leave out --listen, --peer and --json, and start no ranks"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check the installation, this machine and the network between hosts",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--compile", action="store_true", help="also optimize and train a tiny model in a child process"
    )
    parser.add_argument(
        "--net", action="store_true", help="also explain this host's interfaces; under torchrun look at all other hosts"
    )
    parser.add_argument("--peer", metavar="HOST[,HOST]", help="as --net, and look at these hosts, where --listen runs")
    parser.add_argument(
        "--listen", action="store_true", help="let --peer on other hosts look at this one, until Ctrl-C"
    )
    parser.add_argument(
        "--port",
        default=str(net_peers.DEFAULT_PORT),
        metavar="PORT[,PORT]",
        help="where --listen listens and --peer calls; --peer tries all ports that the other side listens at "
        f"(default {net_peers.DEFAULT_PORT})",
    )
    parser.add_argument(
        "--nccl", action="store_true", help="also say whether NCCL would use agspeed's network plug-in, and why not"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="also write the findings, the settings and facts about this machine to a text file, for a bug report; "
        "- prints that text instead of the lines",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    ports = net_peers.parse_ports(arguments.port)
    if arguments.listen and (arguments.peer or arguments.net or arguments.json or arguments.compile or arguments.nccl):
        raise UserError("--listen goes alone, with --port at most: other options are for the host that looks")
    if arguments.report is not None and (arguments.listen or arguments.peer or arguments.json):
        raise UserError(_ONE_HOST)
    if arguments.listen:
        return net_peers.listen(ports)
    if arguments.peer is not None:
        return _examine(arguments, functools.partial(net_peers.examine, _hosts(arguments.peer), ports[0]))
    place = net_ranks.place() if arguments.net else None
    if place is not None and not place.is_first_of_host:
        return 0
    if place is None or place.num_hosts == 1:
        return _examine(arguments, None)
    if arguments.report is not None:
        raise UserError(_ONE_HOST)
    with net_ranks.open_survey(place) as host:
        if place.host == 0:
            return host.end(_examine(arguments, host.survey, host.checks))
        return host.follow()


def _hosts(text: str) -> list[str]:
    hosts = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not hosts:
        raise UserError("--peer names no host: write --peer node1,node2")
    return hosts


def _examine(
    arguments: argparse.Namespace,
    look: Callable[[], Survey] | None,
    of_others: Callable[[], Iterable[checks.Check]] = tuple,
) -> int:
    """Prints all checks of this host, then the results of `look` between hosts and the checks of `of_others`. Returns:
    the exit code."""
    is_net = arguments.net or look is not None
    prints_lines = not arguments.json and arguments.report != _TO_STDOUT
    found: list[checks.Check] = []
    console = make_console()

    def report(results: Iterable[checks.Check]) -> None:
        for result in results:
            found.append(result)
            if prints_lines:
                console.print(_line(result), soft_wrap=True)

    for check in [*checks.CHECKS, gpu_checks.gpus, *(net_checks.NET_CHECKS if is_net else ())]:
        report(check())
    for check in nccl_checks.NCCL_CHECKS if arguments.nccl else ():
        report(check())
    if arguments.compile:
        report(checks.compile_canary())
    survey = look() if look is not None else None
    if survey is not None:
        for part in net_peers.matrix(survey) if prints_lines else []:
            console.print(part)
        report([*of_others(), *net_peers.check_survey(survey)])
    if arguments.json:
        print(json.dumps(_document(found, survey), indent=1))
    if prints_lines:
        console.print(_verdict(found), soft_wrap=True)
    if arguments.report is not None:
        _report(arguments.report, found)
    return 1 if any(result.status == "fail" for result in found) else 0


def _report(path: str, found: list[checks.Check]) -> None:
    if path == _TO_STDOUT:
        print(bug_report.text(found), end="")
        return
    bug_report.write(path, found)
    print(fmt.printable(f"{path} is written. Read it before you attach it to an issue."))


def _line(check: checks.Check) -> Text:
    mark, style = _MARKS[check.status]
    text = Text.assemble((f"{mark} ", style), (f"{check.name:<17}", "bold"), fmt.printable(check.detail))
    if check.remedy:
        text.append(f"\n  fix: {fmt.printable(check.remedy)}", style="cyan")
    return text


def _verdict(found: list[checks.Check]) -> Text:
    failed = sum(check.status == "fail" for check in found)
    warned = sum(check.status == "warn" for check in found)
    if failed:
        return Text(f"{failed} of {len(found)} checks failed.", style="bold red")
    return Text(
        "Everything works." if not warned else f"Everything works; {warned} of {len(found)} lines could be better."
    )


def _document(found: list[checks.Check], survey: Survey | None) -> dict[str, Any]:
    document: dict[str, Any] = {
        "agspeed": agspeed.__version__,
        "versions": environment.versions(),
        "machine": environment.machine(),
        "checks": [check._asdict() for check in found],
    }
    if survey is not None:
        document["hosts"] = [host.to_json() for host in survey.hosts]
        document["paths"] = [path.to_json() for path in survey.paths]
    return document
