# SPDX-License-Identifier: Apache-2.0
"""horovod.run(): calls a function at every rank of a job, and returns the results of all ranks.

It is `agspeed run` from Python: the arguments are its flags, and other hosts are reached by ssh. Ranks get the function
by its name: each rank imports the function's module, or runs the script that defines it. Arguments and results must
have the types of transfer/objects.py. They travel over the launcher's own connections (`launch/exchange.py`).
"""

from __future__ import annotations

import argparse
import importlib
import runpy
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from agspeed.errors import UserError
from agspeed.launch import arguments, job
from agspeed.launch.exchange import Call, OfRank

__all__ = ["call", "run"]

_AS_MODULE = "__agspeed_main__"


def run(
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Any = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls func(*args, **kwargs) at `num_proc` ranks, as `agspeed run` with the flags of the same names starts them.

    With min_num_proc, max_num_proc or host_discovery_script, the job is elastic, and func makes its own call of
    hvd.elastic.run.

    Returns: the results by rank; of an elastic job, the first min_num_proc of them.
    Raises: UserError for arguments that make no job, and for a function without a name that ranks can look up;
    AgspeedError for a host that cannot be reached, or is lost; RuntimeError if a rank fails.
    """
    least = min_np if min_num_proc is None else min_num_proc
    most = max_np if max_num_proc is None else max_num_proc
    is_elastic = (least, most, host_discovery_script) != (None, None, None)
    flags = {
        # keep-sorted
        "--blacklist-cooldown-range": cooldown_range,
        "--host-discovery-script": host_discovery_script,
        "--hostfile": hostfile,
        "--hosts": hosts,
        "--launcher-grace": 0 if is_elastic else None,  # no other launcher could return the results
        "--max-np": most,
        "--min-np": least,
        "--mpi": use_mpi or None,
        "--mpi-args": mpi_args,
        "--network-interfaces": network_interfaces or network_interface,
        "--num-proc": num_proc if np is None else np,
        "--output-filename": output_filename,
        "--reset-limit": reset_limit,
        "--slots-per-host": slots,
        "--ssh-identity-file": ssh_identity_file,
        "--ssh-port": ssh_port,
        "--start-timeout": start_timeout,
    }
    words = [word for name, value in flags.items() if value is not None for word in _words(name, value)]
    command = [executable or sys.executable, "-m", "agspeed.horovod", "--call"]
    argument = _encoded({"function": _name_of(func), "args": tuple(args), "kwargs": dict(kwargs or {})})
    call = Call(argument)
    status = job.run(replace(_request([*words, "--", *command]), call=call))
    if status != 0:
        raise RuntimeError(
            "Horovod detected that one or more processes exited with non-zero status, thus causing the job to be "
            f"terminated; the status of the first is {status}, and its last lines are above."
        )
    results = _results(call, is_elastic)
    return results[:least] if is_elastic else results


def call() -> None:
    """Runs at a rank: makes the call that run() has sent, and gives the result back."""
    exchange = OfRank()
    wanted = _decoded(exchange.argument())
    module, path, qualified_name = wanted["function"]
    found: Any = _script(path) if path is not None else importlib.import_module(module)
    for word in qualified_name.split("."):
        found = getattr(found, word)
    result = found(*wanted["args"], **wanted["kwargs"])
    exchange.give(_encoded([_rank(), result]))


def _words(name: str, value: Any) -> Iterator[str]:
    """Yields a flag and its value, as a command line has them."""
    values = () if value is True else value if isinstance(value, (list, tuple)) else (value,)
    yield name
    yield from map(str, values)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"horovod.run(): {message}; write the values as for the flags of `agspeed run`.")


def _request(words: list[str]) -> job.Request:
    parser = _Parser(add_help=False, allow_abbrev=False)
    arguments.add_to(parser)
    return arguments.request_of(parser.parse_args(words))


def _results(call: Call, is_elastic: bool) -> list[Any]:
    """Returns the results by rank. Raises: RuntimeError if a rank of a job of fixed size has given none."""
    silent = [rank for rank, result in call.results.items() if not result]
    if silent and not is_elastic:
        raise RuntimeError(f"rank {min(silent)} ended with status 0 before the function had returned.")
    found = [_decoded(call.results[number]) for number in sorted(call.results) if call.results[number]]
    return [result for _, result in sorted(found, key=lambda each: each[0])]


def _rank() -> int:
    """The rank of this process; in an elastic job, in its last group."""
    from agspeed.elastic import member as members
    from agspeed.horovod import environment

    member = members.of_this_process()
    if member is None:
        return environment.placement().rank
    return 0 if member.place is None else member.place.rank


def _script(path: str) -> Any:
    if not Path(path).is_file():
        raise UserError(f"horovod.run(): this host has no {path}, which defines the function; copy the script there.")
    sys.path.insert(0, str(Path(path).parent))
    names = runpy.run_path(path, run_name=_AS_MODULE)
    return type(
        "Script", (), {name: staticmethod(value) if callable(value) else value for name, value in names.items()}
    )


def _name_of(func: Callable[..., Any]) -> list[str | None]:
    """Returns the function's module, its script (None if ranks can import the module), and its name there."""
    module, name = getattr(func, "__module__", None), getattr(func, "__qualname__", "")
    if not module or not name or "<" in name:
        raise UserError(f"run({func!r}): every rank looks the function up by its name: define it with def in a module.")
    if module != "__main__":
        return [module, None, name]
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None:
        raise UserError(f"run({name}): every rank reads the function's file, and it has none: define it in a module.")
    return [module, str(Path(path).resolve()), name]


def _encoded(value: Any) -> bytes:
    from agspeed.transfer import objects

    return objects.encode(value)


def _decoded(data: bytes) -> Any:
    from agspeed.transfer import objects

    return objects.decode(data)
