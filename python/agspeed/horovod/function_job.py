# SPDX-License-Identifier: Apache-2.0
"""horovod.run(): calls a function at every rank of a job on this host, and returns the results of all ranks.

Ranks get the function by its name: each rank imports the function's module, or runs the script that defines it.
Arguments and results must have the types of transfer/objects.py. They travel in files of a folder that only this user
can read.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agspeed import files
from agspeed.errors import UserError
from agspeed.launch import job
from agspeed.private_folder import PrivateFolder, sweep

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
    """Calls func(*args, **kwargs) at `num_proc` ranks. Returns: their results, by rank.

    Raises: UserError for jobs that this function cannot start: other hosts, elastic jobs, MPI, or a function without a
    name that ranks can look up. RuntimeError if a rank fails.
    """
    refused = {
        "min_num_proc": min_num_proc or min_np,
        "max_num_proc": max_num_proc or max_np,
        "slots": slots,
        "reset_limit": reset_limit,
        "cooldown_range": cooldown_range,
        "hostfile": hostfile,
        "host_discovery_script": host_discovery_script,
        "ssh_port": ssh_port,
        "ssh_identity_file": ssh_identity_file,
        "use_mpi": use_mpi,
        "mpi_args": mpi_args,
    }
    named = [name for name, value in refused.items() if value]
    if named or (hosts is not None and not hosts.startswith("localhost:")):
        raise UserError(
            f"run({', '.join(named or ['hosts'])}): ranks are started on this host only, a fixed number of them, "
            "without MPI; for several hosts use torchrun, mpirun or srun with a script."
        )
    interfaces = network_interfaces or network_interface
    sweep()
    with PrivateFolder("run") as made:
        folder = made.path
        _write(folder / "call", {"function": _name_of(func), "args": tuple(args), "kwargs": dict(kwargs or {})})
        request = job.Request(
            num_ranks=num_proc if np is None else np,
            command=[executable or sys.executable, "-m", "agspeed.horovod", "--call", str(folder)],
            variables={"AGSPEED_SOCKET_IFNAME": interfaces} if interfaces else {},
            output_folder=Path(output_filename) if output_filename else None,
        )
        status = job.run(request)
        if status != 0:
            raise RuntimeError(
                "Horovod detected that one or more processes exited with non-zero status, thus causing the job to be "
                f"terminated; the status of the first is {status}, and its last lines are above."
            )
        return [_read(folder / f"result.{rank}") for rank in range(request.num_ranks)]


def call(folder: Path) -> None:
    """Runs at a rank: makes the call that run() has written to `folder`, and writes its result there."""
    from agspeed.horovod import environment

    wanted = _read(folder / "call")
    module, path, qualified_name = wanted["function"]
    found: Any = _script(path) if path is not None else importlib.import_module(module)
    for word in qualified_name.split("."):
        found = getattr(found, word)
    result = found(*wanted["args"], **wanted["kwargs"])
    _write(folder / f"result.{environment.placement().rank}", result)


def _script(path: str) -> Any:
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


def _write(path: Path, value: Any) -> None:
    from agspeed.transfer import objects

    files.write(path, objects.encode(value))


def _read(path: Path) -> Any:
    from agspeed.transfer import objects

    return objects.decode(path.read_bytes())
