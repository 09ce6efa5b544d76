# SPDX-License-Identifier: Apache-2.0
"""horovodrun's flags, and the meaning of each one here. Some of torchrun's are among them.

Settings become variables that ranks read. Flags for MPI are refused with an error.
Flags for features that do not exist here (cycles, NCCL's streams) are accepted, and named once.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agspeed.errors import UserError
from agspeed.launch import hosts
from agspeed.launch.attach import identity
from agspeed.launch.check.look import CheckRequest
from agspeed.launch.config_file import ConfigFile
from agspeed.launch.job import Request
from agspeed.launch.reach.choice import INTERFACE_VARIABLES
from agspeed.launch.starters import PodExec, Ssh
from agspeed.membership.coordinator import Limits

__all__ = ["add_to", "add_ways", "check_of", "command_alone", "ignored", "remote_of", "request_of", "seconds_of"]

_MIB = 1 << 20
_MOST_PORTS = 1 << 16


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
    "autotune-log-file": ("HOROVOD_AUTOTUNE_LOG", "rank 0 writes the settings that it has tried"),
}
_SWITCHES = {
    "autotune": ("HOROVOD_AUTOTUNE", "tune the fusion of operations while training"),
    "optimize": ("AGSPEED_AUTO", "optimize the model of a script that does not call agspeed"),
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
_REFUSED_WITH_VALUE = ("mpi-args",)
_REFUSED_SWITCHES = ("jsrun", "mpi")
_FLAGS_OF_JOBS = (
    "num-proc",
    "hosts",
    "hostfile",
    "host-discovery-script",
    "min-np",
    "max-np",
    "output-filename",
    "as-horovod",
)


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the flags, and the command behind them."""
    parser.add_argument("-np", "--num-proc", type=int, metavar="N", help="ranks to start")
    _add_hosts(parser)
    _add_elastic(parser)
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
    parser.add_argument(
        "-cb", "--check-build", action="store_true", help="print the available parts, and start nothing"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="look at the hosts, print what would keep a job from running, start nothing",
    )
    parser.add_argument(
        "--as-horovod", action="store_true", help="the command's `import horovod` finds agspeed.horovod"
    )
    parser.add_argument("--verbose", action="store_true", help="print the commands that are started")
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
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    for name in (*_IGNORED_SWITCHES, *_REFUSED_SWITCHES):
        parser.add_argument(f"--{name}", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND ...", help="the command that every rank runs"
    )


def _add_hosts(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of jobs on several hosts."""
    parser.add_argument(
        "-H", "--hosts", metavar="A:N,B:N", help="hosts with their slots, that is, how many ranks each may run"
    )
    parser.add_argument(
        "-hostfile", "--hostfile", type=Path, metavar="FILE", help="the same as a file of lines such as: node0 slots=4"
    )
    add_ways(parser)
    parser.add_argument(
        "--master-addr", metavar="A", help="an address of the first host that the others reach; default: ssh's"
    )


def add_ways(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say how other hosts are reached."""
    parser.add_argument("--ssh-port", "-p", type=int, metavar="N", help="the port of sshd on the other hosts")
    parser.add_argument("--ssh-identity-file", "-i", type=Path, metavar="FILE", help="the private key for ssh")
    parser.add_argument(
        "--start-timeout", type=float, metavar="S", default=30.0, help="seconds until all hosts must be ready (30)"
    )
    parser.add_argument("--remote-python", metavar="FILE", help="the interpreter on other hosts, if it is another path")


def _add_elastic(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of jobs whose ranks may come and go (agspeed.elastic)."""
    parser.add_argument(
        "--min-np", "--min-num-proc", type=int, metavar="N", dest="min_np", help="elastic: go on with N ranks or more"
    )
    parser.add_argument(
        "--max-np", "--max-num-proc", type=int, metavar="N", dest="max_np", help="elastic: use N ranks at most (-np)"
    )
    parser.add_argument(
        "--elastic-timeout", type=float, metavar="S", default=600.0, help="seconds to wait for enough ranks (600)"
    )
    identity.add_to(parser)
    parser.add_argument("--reset-limit", type=int, metavar="N", help="how often the ranks of an elastic job may change")
    parser.add_argument(
        "--host-discovery-script",
        type=Path,
        metavar="FILE",
        help="elastic: a program, run each second, that prints the hosts: a line each, such as node0 or node0:4",
    )
    parser.add_argument(
        "--slots-per-host", type=int, metavar="N", help="the slots of hosts that the script prints without a number"
    )
    parser.add_argument(
        "--blacklist-cooldown-range",
        nargs=2,
        type=float,
        metavar=("MIN", "MAX"),
        default=Request.pause_s,
        help="elastic: how many seconds a host stays unused after a failure: MIN at first, twice as long after each "
        "further failure, and MAX at most (1 60)",
    )


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
            f"{', '.join(refused)}: `agspeed run` starts ranks on hosts that --hosts or --hostfile names, without MPI; "
            "leave these flags out, or use mpirun or srun, under which the same script runs."
        )
    named = _hosts(arguments)
    script = _script(arguments)
    num_slots = sum(host.slots for host in named)
    num_ranks = arguments.num_proc if arguments.num_proc is not None else num_slots
    if num_ranks < 1:
        raise UserError("say how many ranks to start: agspeed run -np 4 python train.py")
    command = _command(arguments.command)
    if not command:
        raise UserError("name the command that every rank runs: agspeed run -np 4 python train.py")
    limits = _limits(arguments, num_ranks, num_slots)
    return Request(
        num_ranks=num_ranks,
        command=command,
        variables=_variables(arguments),
        output_folder=arguments.output_filename,
        has_time=arguments.has_time,
        hosts=named,
        remote=remote_of(arguments),
        master_address=arguments.master_addr,
        start_timeout_s=seconds_of("--start-timeout", arguments.start_timeout),
        limits=limits,
        identity=identity.identity_of(arguments, limits is not None),
        most_resets=arguments.reset_limit,
        discovery_script=script,
        slots_per_host=arguments.slots_per_host,
        pause_s=_pause(arguments),
    )


def check_of(arguments: argparse.Namespace) -> CheckRequest:
    """Returns the hosts to look at. Raises: UserError for wrong flags."""
    script, named = _script(arguments), _hosts(arguments)
    return CheckRequest(
        num_ranks=arguments.num_proc or 0,
        hosts=named if named or script is not None else hosts.local(1),
        discovery_script=script,
        slots_per_host=arguments.slots_per_host,
        remote=remote_of(arguments),
        start_timeout_s=seconds_of("--start-timeout", arguments.start_timeout),
        interfaces=_interfaces(arguments),
    )


def command_alone(arguments: argparse.Namespace) -> tuple[list[str], dict[str, str]] | None:
    """Returns a command and its variables if --optimize is given, but no flag of a job; else None.

    Raises: UserError if there is no command.
    """
    if not arguments.optimize or any(_given(arguments, name) for name in _FLAGS_OF_JOBS):
        return None
    if not (command := _command(arguments.command)):
        raise UserError("name the command to run: agspeed run --optimize python train.py")
    return command, _variables(arguments)


def _hosts(arguments: argparse.Namespace) -> tuple[hosts.Host, ...]:
    if arguments.hosts is not None and arguments.hostfile is not None:
        raise UserError("--hosts and --hostfile name hosts twice; use one of them.")
    if arguments.hostfile is not None:
        return hosts.read(arguments.hostfile)
    return () if arguments.hosts is None else hosts.parse(arguments.hosts)


def _script(arguments: argparse.Namespace) -> Path | None:
    """Returns the script that finds hosts."""
    script: Path | None = arguments.host_discovery_script
    slots = arguments.slots_per_host
    if slots is not None and script is None:
        raise UserError("--slots-per-host is for hosts that --host-discovery-script finds; leave it out.")
    if slots is not None and not 1 <= slots <= hosts.MOST_SLOTS:
        raise UserError(f"--slots-per-host {slots}: write how many ranks a host may run, 1 to {hosts.MOST_SLOTS}.")
    if script is not None and (arguments.hosts is not None or arguments.hostfile is not None):
        raise UserError("--host-discovery-script finds the hosts that --hosts or --hostfile name; use one of them.")
    if script is not None and not script.is_file():
        raise UserError(f"--host-discovery-script {script}: there is no such file; name a program that prints hosts.")
    return script


def remote_of(arguments: argparse.Namespace) -> Ssh | PodExec:
    """Returns how other hosts are reached. Raises: UserError for wrong flags."""
    port, key = arguments.ssh_port, arguments.ssh_identity_file
    if port is not None and not 0 < port < _MOST_PORTS:
        raise UserError(f"--ssh-port {port}: write the port of sshd, 1 to {_MOST_PORTS - 1}.")
    if key is not None and not key.is_file():
        raise UserError(f"--ssh-identity-file {key}: there is no such file; name a private key.")
    starter = PodExec.of_this_pod() or Ssh(port=port, identity_file=key)
    return starter if arguments.remote_python is None else replace(starter, python=arguments.remote_python)


def _limits(arguments: argparse.Namespace, num_ranks: int, num_slots: int) -> Limits | None:
    """Returns the sizes that an elastic job may have; None for a job of a fixed size."""
    if arguments.min_np is None and arguments.max_np is None and arguments.host_discovery_script is None:
        return None
    least = num_ranks if arguments.min_np is None else arguments.min_np
    most = num_ranks if arguments.max_np is None else arguments.max_np
    if not 1 <= least <= num_ranks <= most:
        raise UserError(
            f"--min-np {least}, -np {num_ranks}, --max-np {most}: write numbers of ranks that grow in this order."
        )
    if num_slots and num_slots < num_ranks:
        raise UserError(
            f"Requested more processes ({num_ranks}) than there are available slots ({num_slots}); start fewer ranks, "
            "or name more slots."
        )
    if arguments.reset_limit is not None and arguments.reset_limit < 0:
        raise UserError(f"--reset-limit {arguments.reset_limit}: write how often ranks may change, 0 or more.")
    wait_s = seconds_of("--elastic-timeout", arguments.elastic_timeout)
    return Limits(least=least, most=most, first=num_ranks, wait_s=wait_s)


def _pause(arguments: argparse.Namespace) -> tuple[float, float]:
    """Returns the shortest and the longest time for which a host stays unused after a failure."""
    shortest, longest = arguments.blacklist_cooldown_range
    if not 0 < shortest <= longest < math.inf:
        raise UserError(
            f"--blacklist-cooldown-range {shortest:g} {longest:g}: write two numbers of seconds, more than 0, the "
            "smaller one first."
        )
    return shortest, longest


def seconds_of(flag: str, seconds: float) -> float:
    """Returns the value of a flag. Raises: UserError if it is not a time."""
    if not 0 < seconds < math.inf:
        raise UserError(f"{flag} {seconds}: write a number of seconds, more than 0.")
    return seconds


def _command(words: Sequence[str]) -> list[str]:
    return list(words[1:] if words[:1] == ["--"] else words)


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
    if interfaces := ",".join(_interfaces(arguments)):
        variables |= dict.fromkeys(INTERFACE_VARIABLES, interfaces)
    return variables


def _interfaces(arguments: argparse.Namespace) -> list[str]:
    text = arguments.network_interfaces or ",".join(arguments.network_interface)
    return text.split(",") if text else []


def _given(arguments: argparse.Namespace, name: str) -> bool:
    return getattr(arguments, name.replace("-", "_")) not in (None, False)
