# SPDX-License-Identifier: Apache-2.0
"""`agspeed run`: starts the ranks of a job on this host or on several, with horovodrun's flags."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

from agspeed.errors import UserError
from agspeed.launch import arguments as flags
from agspeed.launch import job
from agspeed.launch.check import look
from agspeed.native_files import extensions

__all__ = ["add"]

_EPILOG = """\
examples:
  agspeed run -np 4 python train.py              four ranks of a script that says import agspeed.horovod.torch as hvd
  agspeed run -np 4 --as-horovod python train.py the same for a script that says import horovod.torch as hvd
  agspeed run -np 2 --output-filename logs python train.py --epochs 3
  agspeed run -H node0:2,node1:2 python train.py two ranks on each of two hosts, by ssh
  agspeed run --hostfile hosts.txt -np 8 python train.py
  agspeed run --check -H node0:2,node1:2         look at these hosts first: versions, clocks, interfaces and limits
  agspeed run -np 4 --min-np 2 python train.py   elastic: a script that says @agspeed.elastic.run goes on with 2 ranks
  agspeed run --attach NAME -np 4 --min-np 2 python train.py
                                                 go on with the elastic job NAME after its launcher was killed
  agspeed run --optimize python train.py         no job: one process, whose model is optimized without an edit
  agspeed run -np 4 --max-np 8 --host-discovery-script ./hosts.sh --slots-per-host 2 python train.py
                                                 elastic: ranks on the hosts that ./hosts.sh prints from time to time

Ranks on other hosts need the same agspeed there, and a login by ssh without questions. They get this command's
variables, and its folder if they have it. ssh checks the keys of hosts; your ssh settings apply.

Ranks also find what torch.distributed reads (RANK, WORLD_SIZE, MASTER_ADDR, ...). Every job has a random key of its
own, which stands in no command line, file or variable; connections without it are refused. The first rank that fails
ends the job, with its last lines and its status; so does a signal to this command, or a host that is lost. All
processes of the job end with it, on all hosts. If this command is killed, elastic ranks go on for --launcher-grace
seconds, until another command attaches.

--check ends with status 1 if it has a finding."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="start a job of several ranks, on this host or on several",
        description="Starts ranks of one command, on this host or by ssh on several, as horovodrun does.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    flags.add_to(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.check_build:
        _print_build()
        return 0
    if arguments.check:
        return look.run(flags.check_of(arguments))
    alone = flags.command_alone(arguments)
    if arguments.optimize:
        _require_entry_point()
    if alone is not None:
        _replace_this_process(*alone)
    request = flags.request_of(arguments)
    if arguments.as_horovod:
        request = replace(request, command=_as_horovod(request.command))
    unused = flags.ignored(arguments)
    if unused:
        print(f"agspeed: ignored, because they have no effect here: {', '.join(unused)}", file=sys.stderr)
    if arguments.verbose:
        where = f" on {', '.join(host.name for host in request.hosts)}" if request.hosts else ""
        print(f"agspeed: {request.num_ranks} ranks run {' '.join(request.command)}{where}", file=sys.stderr)
    return job.run(request)


def _require_entry_point() -> None:
    """Raises: UserError if torch would not load agspeed in the command."""
    if not importlib.metadata.entry_points(group="torch.backends", name="agspeed"):
        raise UserError(
            "--optimize needs agspeed's wheel, because torch finds agspeed by an entry point of the wheel: install it, "
            "or leave --optimize out, write `import agspeed` into the script and set AGSPEED_AUTO=1."
        )
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        raise UserError(
            "--optimize does nothing, because TORCH_DEVICE_BACKEND_AUTOLOAD keeps torch from loading agspeed: unset "
            "this variable."
        )


def _replace_this_process(command: list[str], variables: Mapping[str, str]) -> NoReturn:
    """Runs the command in place of this process, so that the terminal, signals and the status are the command's.

    Raises: UserError if the command cannot be started.
    """
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, {**os.environ, **variables})
    except OSError as error:
        raise UserError(f"cannot start {command[0]}: {error.strerror}; check its name and path.") from None


def _as_horovod(command: Any) -> list[str]:
    """Turns `python train.py` into `python -m agspeed.horovod train.py`. This Python runs a script without `python`."""
    words = list(command)
    is_python = words[0].rsplit("/", 1)[-1].startswith("python")
    return [words[0] if is_python else sys.executable, "-m", "agspeed.horovod", *(words[1:] if is_python else words)]


def _print_build() -> None:
    def mark(is_there: bool) -> str:
        return "[X]" if is_there else "[ ]"

    has_torch = importlib.util.find_spec("torch") is not None
    has_native = bool(extensions())
    print(
        f"agspeed, Horovod's API:\n\n"
        f"Available Frameworks:\n    {mark(False)} TensorFlow\n    {mark(has_torch and has_native)} PyTorch\n"
        f"    {mark(False)} MXNet\n\n"
        f"Available Controllers:\n    {mark(False)} MPI\n    {mark(has_native)} agspeed\n\n"
        f"Available Tensor Operations:\n    {mark(False)} NCCL\n    {mark(False)} DDL\n    {mark(False)} CCL\n"
        f"    {mark(False)} MPI\n    {mark(has_native)} agspeed"
    )
