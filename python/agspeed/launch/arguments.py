# SPDX-License-Identifier: Apache-2.0
"""horovodrun's flags, and the meaning of each one for ranks on this host.

Settings become variables that ranks read. Flags for several hosts, MPI and elastic jobs are refused with an error.
Flags for features that do not exist here (cycles, NCCL's streams) are accepted, and named once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agspeed.errors import UserError
from agspeed.launch.config_file import ConfigFile
from agspeed.launch.local import Request

__all__ = ["add_to", "ignored", "request_of"]

_MIB = 1 << 20
_HOST_SEPARATORS = ","
_LOCAL = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class _Flag:
    """A flag with a number, and the variable that a rank reads: the number times `scale`."""

    name: str
    variable: str
    scale: int = 1


_NUMBERS = (
    _Flag("fusion-threshold-mb", "HOROVOD_FUSION_THRESHOLD", _MIB),
    _Flag("cache-capacity", "HOROVOD_CACHE_CAPACITY"),
    _Flag("stall-check-warning-time-seconds", "HOROVOD_STALL_CHECK_TIME_SECONDS"),
    _Flag("stall-check-shutdown-time-seconds", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"),
)
_TEXTS = {
    "timeline-filename": ("HOROVOD_TIMELINE", "rank 0 writes a trace of all operations"),
    "autotune-log-file": ("HOROVOD_AUTOTUNE_LOG", "rank 0 writes what it has tried"),
}
_SWITCHES = {
    "autotune": ("HOROVOD_AUTOTUNE", "tune what is fused while training"),
    "timeline-mark-cycles": ("HOROVOD_TIMELINE_MARK_CYCLES", "mark in the trace when operations are ordered"),
}
_IGNORED_WITH_VALUE = (
    "autotune-bayes-opt-max-samples",
    "autotune-gaussian-process-noise",
    "autotune-steps-per-sample",
    "autotune-warmup-samples",
    "binding-args",
    "ccl-bgt-affinity",
    "cycle-time-ms",
    "gloo-timeout-seconds",
    "log-level",
    "num-nccl-streams",
    "start-timeout",
    "thread-affinity",
)
_IGNORED_SWITCHES = (
    "disable-cache",
    "gloo",
    "hierarchical-allgather",
    "hierarchical-allreduce",
    "log-hide-timestamp",
    "log-with-timestamp",
    "log-without-timestamp",
    "mpi-threads-disable",
    "no-hierarchical-allgather",
    "no-hierarchical-allreduce",
    "no-log-hide-timestamp",
    "no-mpi-threads-disable",
    "no-torus-allreduce",
    "torus-allreduce",
)
_REFUSED_WITH_VALUE = (
    "blacklist-cooldown-range",
    "elastic-timeout",
    "host-discovery-script",
    "hostfile",
    "max-np",
    "min-np",
    "mpi-args",
    "reset-limit",
    "slots-per-host",
    "ssh-identity-file",
    "ssh-port",
)
_REFUSED_SWITCHES = ("jsrun", "mpi")


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the flags, and the command behind them."""
    parser.add_argument("-np", "--num-proc", type=int, metavar="N", help="ranks to start")
    parser.add_argument("-H", "--hosts", metavar="HOST:SLOTS", help="localhost:N, at least as many slots as ranks")
    parser.add_argument("--network-interfaces", metavar="A,B", help="interfaces that carry the job")
    parser.add_argument("--network-interface", action="append", default=[], metavar="A", help=argparse.SUPPRESS)
    parser.add_argument("--output-filename", type=Path, metavar="FOLDER", help="write FOLDER/rank.N/stdout and stderr")
    parser.add_argument(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        action="store_true",
        dest="has_time",
        help="put the time before each line of a rank",
    )
    _add_switch(parser, "stall-check", "warn of operations that wait for ranks (default)")
    parser.add_argument("--tcp", action="store_true", help="no InfiniBand for NCCL: sets NCCL_IB_DISABLE=1")
    parser.add_argument("-cb", "--check-build", action="store_true", help="print what is there, and start nothing")
    parser.add_argument(
        "--as-horovod", action="store_true", help="the command's `import horovod` finds agspeed.horovod"
    )
    parser.add_argument("--verbose", action="store_true", help="print what is started")
    parser.add_argument(
        "--config-file", action=ConfigFile, metavar="FILE", help="YAML with horovodrun's keys; flags behind it go first"
    )
    for flag in _NUMBERS:
        parser.add_argument(f"--{flag.name}", type=int, metavar="N", help=f"sets {flag.variable}")
    for name, (variable, what) in _TEXTS.items():
        parser.add_argument(f"--{name}", metavar="FILE", help=f"{what}; sets {variable}")
    for name, (variable, what) in _SWITCHES.items():
        _add_switch(parser, name, f"{what}; sets {variable}=1")
    for name in (*_IGNORED_WITH_VALUE, *_REFUSED_WITH_VALUE):
        count = 2 if name == "blacklist-cooldown-range" else None
        parser.add_argument(f"--{name}", nargs=count, help=argparse.SUPPRESS)
    for name in (*_IGNORED_SWITCHES, *_REFUSED_SWITCHES):
        parser.add_argument(f"--{name}", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND ...", help="what every rank runs")


def _add_switch(parser: argparse.ArgumentParser, name: str, what: str) -> None:
    """Adds --name and --no-name. The last one given counts; without either, the value is None."""
    key = name.replace("-", "_")
    parser.add_argument(f"--{name}", action="store_const", const=True, dest=key, help=what)
    parser.add_argument(f"--no-{name}", action="store_const", const=False, dest=key, help=argparse.SUPPRESS)


def ignored(arguments: argparse.Namespace) -> list[str]:
    """The given flags that have no effect here."""
    return [f"--{name}" for name in (*_IGNORED_WITH_VALUE, *_IGNORED_SWITCHES) if _given(arguments, name)]


def request_of(arguments: argparse.Namespace) -> Request:
    """Returns the job to start. Raises: UserError for a job that cannot be started; it names the remedy."""
    refused = [f"--{name}" for name in (*_REFUSED_WITH_VALUE, *_REFUSED_SWITCHES) if _given(arguments, name)]
    if refused:
        raise UserError(
            f"{', '.join(refused)}: `agspeed run` starts ranks on this host only, a fixed number of them, without MPI; "
            "for several hosts use torchrun, mpirun or srun, under which the same script runs."
        )
    if arguments.num_proc is None or arguments.num_proc < 1:
        raise UserError("say how many ranks to start: agspeed run -np 4 python train.py")
    command = _command(arguments.command)
    if not command:
        raise UserError("say what every rank runs: agspeed run -np 4 python train.py")
    _check_hosts(arguments.hosts, arguments.num_proc)
    return Request(
        num_ranks=arguments.num_proc,
        command=command,
        variables=_variables(arguments),
        output_folder=arguments.output_filename,
        has_time=arguments.has_time,
    )


def _command(words: Sequence[str]) -> list[str]:
    return list(words[1:] if words[:1] == ["--"] else words)


def _check_hosts(hosts: str | None, num_ranks: int) -> None:
    slots = 0
    for each in (hosts or f"localhost:{num_ranks}").split(_HOST_SEPARATORS):
        name, separator, count = each.partition(":")
        if not separator or not count.isdigit() or not name:
            raise UserError("Invalid host input, please make sure it has format as : worker-0:2,worker-1:2.")
        if name not in _LOCAL:
            raise UserError(
                f"--hosts {hosts}: `agspeed run` starts ranks on this host only, as localhost:{num_ranks}; for several "
                "hosts use torchrun, mpirun or srun, under which the same script runs."
            )
        slots += int(count)
    if slots < num_ranks:
        raise UserError(f"Requested more processes ({num_ranks}) than there are available slots ({slots})")


def _variables(arguments: argparse.Namespace) -> dict[str, str]:
    variables = {}
    for flag in _NUMBERS:
        value = getattr(arguments, flag.name.replace("-", "_"))
        if value is None:
            continue
        if value < 0:
            raise UserError(f"--{flag.name} {value}: write a number, 0 or more.")
        variables[flag.variable] = str(value * flag.scale)
    for name, (variable, _) in _TEXTS.items():
        if _given(arguments, name):
            variables[variable] = str(Path(getattr(arguments, name.replace("-", "_"))).absolute())
    for name, (variable, _) in _SWITCHES.items():
        if (is_on := getattr(arguments, name.replace("-", "_"))) is not None:
            variables[variable] = str(int(is_on))
    if arguments.stall_check is False:
        variables["HOROVOD_STALL_CHECK_DISABLE"] = "1"
    if arguments.tcp:
        variables["NCCL_IB_DISABLE"] = "1"
    interfaces = arguments.network_interfaces or ",".join(arguments.network_interface)
    if interfaces:
        variables["AGSPEED_SOCKET_IFNAME"] = interfaces
        variables["NCCL_SOCKET_IFNAME"] = interfaces
    return variables


def _given(arguments: argparse.Namespace, name: str) -> bool:
    return getattr(arguments, name.replace("-", "_")) not in (None, False)
