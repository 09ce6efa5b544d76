# SPDX-License-Identifier: Apache-2.0
"""`agspeed comm bench`: times collectives between ranks, started by torchrun or by itself on this host. `agspeed comm
inspect` is in `comm_inspect.py`."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agspeed import config
from agspeed.cli import comm_inspect
from agspeed.errors import AgspeedError, UserError
from agspeed.launch.ranks import INHERITED, Ranks
from agspeed.reporting import environment
from agspeed.reporting import format as fmt

if TYPE_CHECKING:
    from agspeed.distributed.bench import Request

__all__ = ["add"]

_EPILOG = """\
examples:
  agspeed comm bench --ranks 4                                   four ranks on this host, through shared memory
  AGSPEED_SHARED_MEMORY=0 agspeed comm bench --ranks 4           the same over loopback
  agspeed comm bench --ranks 4 --against gloo                    how many times as fast as Gloo, measured in turns
  agspeed comm bench --ranks 4 --collectives all_reduce --algorithms all --html bench.html
  agspeed comm bench --ranks 2 --codec all                       what codecs of gradients save and change
  on each of four hosts, where N is 0 to 3 and node0 is the name or address of the first host:
  torchrun --nnodes 4 --nproc-per-node 1 --node-rank N --master-addr node0 --master-port 29500 \\
      -m agspeed comm bench --sizes 1M:256M --link-rate 25gbit,25gbit,10gbit,10gbit

Sizes and bandwidths are defined as in nccl-tests: each rank's link carries at least the bus bandwidth. The last lines
are about the last row. They show the share of each rail of the first rank, and how much of the rail's rate it reached.
The rail's rate comes from --link-rate, or else from the adapter's driver. If rails are slow, start
`agspeed doctor --net` in the same way: it shows the reasons."""
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_RATES = {"mbit": 1e6, "gbit": 1e9}
_MAX_RANKS = 256


def add(commands: Any) -> None:
    parser = commands.add_parser("comm", help="measure communication between ranks, or look into a hang")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    bench = actions.add_parser(
        "bench",
        help="time collectives by size and algorithm",
        description="Times collective operations between the ranks that torchrun started, or that --ranks starts here.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench.add_argument("--ranks", type=int, help="start this number of ranks on this host")
    bench.add_argument("--collectives", default="all_reduce", metavar="A,B", help="default all_reduce; or all")
    bench.add_argument(
        "--sizes", default="1K:64M", metavar="LIST", help="like 64K,1M, or 1K:64M for steps of 4 (default 1K:64M)"
    )
    bench.add_argument("--algorithms", default="auto", metavar="A,B", help="names, auto (the plan's choice), or all")
    bench.add_argument("--codec", metavar="A,B", help="compare codecs of gradients instead: names, or all")
    bench.add_argument(
        "--gradients",
        metavar="FILE",
        help='with --codec: tensors that torch.save() wrote; "{rank}" in the name is the rank (default: built-in ones)',
    )
    bench.add_argument("--dtype", default="float32", help="a type of torch (default float32)")
    bench.add_argument("--backend", default="agspeed", help="agspeed, or another backend to compare with: gloo, nccl")
    bench.add_argument("--against", metavar="BACKEND", help="also time another backend, in turns: gloo, nccl")
    bench.add_argument("--seconds", type=float, default=0.3, help="about how long to time a row (default 0.3)")
    bench.add_argument(
        "--link-rate",
        metavar="RATE[,RATE]",
        help="the rate of each link of a host, or one rate for all links together: adds the reached share",
    )
    bench.add_argument("--json", action="store_true", help="print JSON instead of a table")
    bench.add_argument("--html", type=Path, metavar="FILE", help="also write a page with a plot")
    bench.add_argument("--started-by", help=argparse.SUPPRESS)  # the command of the process that started this rank
    bench.set_defaults(run=_run)
    comm_inspect.add(actions)


def _run(arguments: argparse.Namespace) -> int:
    links = [_rate(word) / 8 for word in arguments.link_rate.split(",")] if arguments.link_rate else []
    if not 0 < arguments.seconds < math.inf:
        raise UserError(f"--seconds {arguments.seconds:g}: write a number above 0")
    if arguments.html is not None and arguments.html.suffix.lower() != ".html":
        raise UserError(f"--html {arguments.html}: name a file that ends in .html")
    if arguments.html is not None and not arguments.html.parent.is_dir():
        raise UserError(f"--html {arguments.html}: there is no folder {arguments.html.parent}; make it first")
    if arguments.ranks is None and not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        raise UserError("there are no ranks: start this by torchrun, or add --ranks 4 for four ranks on this host.")
    if arguments.ranks is not None and not 2 <= arguments.ranks <= _MAX_RANKS:
        raise UserError(f"--ranks {arguments.ranks}: write a number from 2 to {_MAX_RANKS}")
    if arguments.gradients is not None and arguments.codec is None:
        raise UserError(f"--gradients {arguments.gradients}: name codecs to try on it, like --codec all")
    request = _request(arguments)
    return _measure(arguments, request, links) if arguments.ranks is None else _start_ranks(arguments)


def _request(arguments: argparse.Namespace) -> Request:
    """Returns the request for the benchmark. Raises: UserError for arguments that cannot be measured."""
    import torch
    from torch import distributed

    from agspeed.distributed import bench

    if arguments.codec is not None:
        from agspeed.distributed.codecs.catalog import CODECS

        arguments.codec = ",".join(_names(arguments.codec, list(CODECS), "--codec"))
    if arguments.gradients is not None:
        from agspeed.distributed.codecs import sample_gradients

        sample_gradients.of_file(arguments.gradients, int(os.environ.get("RANK", "0")))
    dtype = getattr(torch, arguments.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise UserError(f"--dtype {arguments.dtype}: name a type of torch, like float32 or bfloat16")
    if not distributed.is_backend_available(arguments.backend):
        raise UserError(f"--backend {arguments.backend}: this torch has no such backend; use agspeed or gloo")
    collectives = _names(arguments.collectives, list(bench.COLLECTIVES), "--collectives")
    known = list(dict.fromkeys(name for each in collectives for name in bench.algorithms(each)))
    algorithms = _names(arguments.algorithms, [bench.AUTO, *known], "--algorithms")
    if arguments.against is not None and not distributed.is_backend_available(arguments.against):
        raise UserError(f"--against {arguments.against}: this torch has no such backend; use gloo")
    if arguments.against == arguments.backend:
        raise UserError(f"--against {arguments.against}: that is the backend itself; name another one, like gloo")
    if arguments.backend != "agspeed" and algorithms != [bench.AUTO]:
        raise UserError(f"--algorithms {arguments.algorithms}: only backend agspeed lets you choose them")
    sizes = _sizes(arguments.sizes)
    on_host = arguments.ranks or int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    needed, there = on_host * 2 * max(sizes), environment.memory_bytes()
    if needed > there:
        lacking = f"{fmt.plural(on_host, 'rank')} need {fmt.size(needed)} here, and there are {fmt.size(there)}"
        raise UserError(f"--sizes {arguments.sizes}: {lacking}")
    return bench.Request(collectives, sizes, algorithms, dtype, arguments.seconds, arguments.against or "")


# --- one rank ---------------------------------------------------------------------------------------------------------


def _measure(arguments: argparse.Namespace, request: Request, links: list[float]) -> int:
    from torch import distributed

    from agspeed.distributed import bench

    try:
        distributed.init_process_group(arguments.backend)
    except ValueError as error:
        raise UserError(str(error)) from None
    except RuntimeError as error:
        raise AgspeedError(f"the ranks did not form a group: {error}") from None
    try:
        is_first = distributed.get_rank() == 0
        if arguments.codec is not None:
            _compare_codecs(arguments, is_first)
            return 0
        link_bytes = sum(links) or None
        printer = _Printer(link_bytes, arguments.against) if is_first and not arguments.json else None
        rows = []
        for row in bench.measure(request):
            rows.append(row.to_json())
            if printer is not None:
                printer.print(rows[-1])
        if is_first:
            if printer is not None:
                printer.print_rails(rows[-1], links)
            _finish(arguments, _document(arguments, rows, distributed.get_world_size(), link_bytes))
    finally:
        distributed.destroy_process_group()
    return 0 if all(row["is_correct"] for row in rows) else 1


def _compare_codecs(arguments: argparse.Namespace, is_first: bool) -> None:
    from torch import distributed

    from agspeed.distributed.codecs import bench, sample_gradients

    rank, rows = distributed.get_rank(), []
    names, file = arguments.codec.split(","), arguments.gradients
    gradients = sample_gradients.of_file(file, rank) if file is not None else sample_gradients.built_in(rank)
    line = "{:<68} {:>10} {:>8} {:>12} {:>10} {:>12} {:>14}"
    if is_first and not arguments.json:
        titles = ("codec", "gradients", "ratio", "time", "speed-up", "step error", "10 steps error")
        print(line.format(*titles), flush=True)
    for row in bench.measure(names, gradients, arguments.seconds):
        rows.append(row.to_json())
        if is_first and not arguments.json:
            ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
            time, speed_up = fmt.milliseconds(row.microseconds / 1000), row.dense_microseconds / row.microseconds
            errors = (fmt.error(error) for error in (row.step_error, row.sum_error))
            print(line.format(row.codec, fmt.size(row.bytes), ratio, time, f"{speed_up:.2f}x", *errors), flush=True)
    if is_first:
        _finish(arguments, _document(arguments, [], distributed.get_world_size(), None) | {"codecs": rows})


def _document(
    arguments: argparse.Namespace, rows: list[dict[str, Any]], ranks: int, link_bytes: float | None
) -> dict[str, Any]:
    conditions = environment.describe()
    return {
        "kind": "agspeed.comm_bench",
        "version": 1,
        "created_at": conditions["created_at"],
        "versions": conditions["versions"],
        "machine": conditions["machine"],
        "backend": arguments.backend,
        "against": arguments.against,
        "ranks": ranks,
        "dtype": arguments.dtype,
        "command": arguments.started_by or environment.command(),
        "link_gbytes_per_s": link_bytes / 1e9 if link_bytes else None,
        "rows": rows,
    }


def _finish(arguments: argparse.Namespace, document: dict[str, Any]) -> None:
    if arguments.json:
        print(json.dumps(document, indent=1))
    if arguments.html is not None:
        from agspeed.reporting.html import bench_page
        from agspeed.reporting.model import write_page

        print(f"The plot is in {write_page(arguments.html, bench_page.render(document))}.", file=sys.stderr)


class _Printer:
    """Prints rows as they arrive, below one line of titles."""

    _FORMAT = "{:<15} {:<14} {:>10} {:>12} {:>12} {:>12}"

    def __init__(self, link_bytes: float | None, against: str | None) -> None:
        self._link_gbytes = link_bytes / 1e9 if link_bytes else None
        titles = self._FORMAT.format("collective", "algorithm", "size", "time", "algbw GB/s", "busbw GB/s")
        titles += f" {'of the link':>12}" if self._link_gbytes else ""
        print(titles + (f" {against:>12} {'speed-up':>9}" if against else ""), flush=True)

    def print(self, row: dict[str, Any]) -> None:
        speeds = (f"{row[key]:.3f}" for key in ("algorithm_gbytes_per_s", "bus_gbytes_per_s"))
        taken = fmt.milliseconds(row["microseconds"] / 1000)
        line = self._FORMAT.format(row["collective"], row["algorithm"], fmt.size(row["bytes"]), taken, *speeds)
        if self._link_gbytes:
            line += f" {fmt.percent(row['bus_gbytes_per_s'] / self._link_gbytes):>12}"
        if row["against_microseconds"] is not None:
            ratio = row["against_microseconds"] / row["microseconds"]
            line += f" {fmt.milliseconds(row['against_microseconds'] / 1000):>12} {ratio:>8.2f}x"
        print(line + ("" if row["is_correct"] else "  WRONG RESULT"), flush=True)

    def print_rails(self, row: dict[str, Any], links: Sequence[float]) -> None:
        """Prints each rail's share of a row's traffic at this rank; nothing if the row has no rails."""
        if not row["rails"]:
            return
        print(f"Rails of rank 0, {row['collective']} of {fmt.size(row['bytes'])}:")
        for index, rail in enumerate(row["rails"]):
            line = f"  {rail['interface']:<12} {rail['address']:<16} {fmt.percent(rail['share']):>7} of the sent bytes"
            line += f" {8e3 * rail['gbytes_per_s']:>9,.0f} Mbit/s"
            carries = _carries(rail["interface"], index, len(row["rails"]), links)
            if carries is not None:
                part = fmt.percent(1e9 * rail["gbytes_per_s"] / carries)
                line += f" {part:>7} of the {8e-6 * carries:,.0f} that it carries"
            print(line, flush=True)


def _carries(interface: str, index: int, num_rails: int, links: Sequence[float]) -> float | None:
    """Returns the bytes per second that the rail can carry, by --link-rate or its driver; None if unknown."""
    if links:
        return links[index] if len(links) == num_rails else sum(links) / num_rails
    folder = Path("/sys/class/net") / interface
    if not (folder / "device").exists():  # virtual interfaces report an arbitrary speed
        return None
    with contextlib.suppress(OSError, ValueError):
        mbits = int((folder / "speed").read_text(encoding="ascii"))
        return 1e6 * mbits / 8 if mbits > 0 else None
    return None


# --- all ranks on this host -------------------------------------------------------------------------------------------


def _start_ranks(arguments: argparse.Namespace) -> int:
    """Runs this command once per rank; the first rank prints. Returns 0 if all ranks ended with 0."""
    count = arguments.ranks
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count))
    shared["AGSPEED_SOCKET_IFNAME"] = config.resolve().socket_interfaces or "lo"
    for variable, value in (("GLOO_SOCKET_IFNAME", "lo"), ("OMP_NUM_THREADS", "1")):
        shared[variable] = os.environ.get(variable, value)
    command = [sys.executable, "-m", "agspeed", *_of_one_rank(arguments)]
    variables = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    with Ranks(command, variables, [INHERITED] * count) as ranks:
        while not ranks.is_over:
            ranks.note_events()
    _, status = ranks.first_failed or (None, 0)
    return status if status >= 0 else 1


def _of_one_rank(arguments: argparse.Namespace) -> list[str]:
    """Returns the command line of a single rank for `arguments`."""
    names = ["collectives", "sizes", "algorithms", "dtype", "backend", "against", "seconds", "link_rate", "html"]
    names += ["codec", "gradients"]
    given = [(name, getattr(arguments, name)) for name in names]
    options = [f"--{name.replace('_', '-')}={value}" for name, value in given if value is not None]
    options.append(f"--started-by={environment.command()}")
    return ["comm", "bench", *options, *(["--json"] if arguments.json else [])]


# --- arguments --------------------------------------------------------------------------------------------------------


def _names(text: str, known: Sequence[str], option: str) -> list[str]:
    if text == "all":
        return list(known)
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UserError(f"{option} {name}: use {', '.join(known)}, or all")
    if not names:
        raise UserError(f"{option} names nothing: use {', '.join(known)}, or all")
    return names


def _sizes(text: str) -> list[int]:
    first, colon, last = text.partition(":")
    if not colon:
        return [_size(word) for word in text.split(",")]
    sizes, end = [_size(first)], _size(last)
    if end < sizes[0]:
        raise UserError(f"--sizes {text}: write the smaller size first")
    while sizes[-1] * 4 <= end:
        sizes.append(sizes[-1] * 4)
    return sizes


def _size(word: str) -> int:
    digits = word.strip().upper().removesuffix("IB") if word.strip()[-2:].upper() == "IB" else word.strip().upper()
    unit = digits.lstrip("0123456789")
    number = digits.removesuffix(unit) if unit else digits
    if not number.isdecimal() or unit not in _UNITS or int(number) == 0:
        raise UserError(f"--sizes {word}: write a size like 512, 64K, 1M or 1G")
    return int(number) * _UNITS[unit]


def _rate(text: str) -> float:
    for unit, factor in _RATES.items():
        number = text.lower().removesuffix(unit)
        if number != text.lower():
            with contextlib.suppress(ValueError):
                if 0 < float(number) < math.inf:
                    return float(number) * factor
    raise UserError(f"--link-rate {text}: write it like 200mbit or 25gbit")
