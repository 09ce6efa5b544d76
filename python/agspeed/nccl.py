# SPDX-License-Identifier: Apache-2.0
"""Makes NCCL use agspeed's network plug-in: sets the variables for it, and finds out what would prevent it.

    import agspeed.nccl
    agspeed.nccl.enable()                                   # before the first group with backend nccl
    torch.distributed.init_process_group("nccl")

The variables can come from the shell as well: ``eval "$(agspeed nccl env)"``. If a plug-in cannot be used, NCCL falls
back to its own sockets without an error; ``agspeed doctor --nccl`` says why that would happen. Not tested with NCCL
on a GPU. Thread-safe, except `enable`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from agspeed.errors import UserError

__all__ = ["enable", "find_nccl", "library", "obstacles", "variables"]

_LIBRARY = "libnccl-net-agspeed.so"
_NAME = "agspeed"
_SYSTEM_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/cuda/lib64")


def library() -> Path:
    """Returns the plug-in's path in this package. The file does not exist in an installation without the plug-in."""
    return Path(__file__).resolve().parent / "lib" / _LIBRARY


def find_nccl() -> Path | None:
    """Returns the path of the NCCL that torch would load: the wheel's, else the system's. None if there is none."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(root) / "nccl" / "lib" for root in (spec.submodule_search_locations or [] if spec else [])]
    candidates = [folder / "libnccl.so.2" for folder in [*folders, *map(Path, _SYSTEM_FOLDERS)]]
    return next((path for path in candidates if path.exists()), None)


def variables() -> dict[str, str]:
    """Returns the environment variables that make NCCL load the plug-in. Raises: UserError if the file is missing."""
    if not library().exists():
        raise UserError(
            f"{library()} does not exist: this installation has no NCCL plug-in; install the wheel, or build the "
            "target ag_nccl_net in a checkout"
        )
    return {"NCCL_NET_PLUGIN": str(library())}


def obstacles(environment: Mapping[str, str]) -> list[str]:
    """Returns why NCCL would not use the plug-in in that environment, one sentence per reason; [] if it would."""
    found = []
    plugins = [name for name in environment.get("NCCL_NET_PLUGIN", "").split(",") if name]
    if not plugins:
        found.append("NCCL_NET_PLUGIN is not set: NCCL looks for libnccl-net.so, then uses its own transports")
    elif plugins[0] not in (_NAME, str(library())):
        found.append(f"NCCL_NET_PLUGIN={environment['NCCL_NET_PLUGIN']} names another plug-in first")
    network = environment.get("NCCL_NET", "")
    if network and network.lower() != _NAME:
        found.append(f"NCCL_NET={network} admits only a network of that name")
    return found


def enable() -> None:
    """Sets `variables` in this process. Call it before NCCL creates its first communicator: NCCL reads them there.

    Raises: UserError if the environment already names another plug-in or network, which stays as it is.
    """
    wanted = variables()
    for sentence in obstacles({**wanted, **os.environ}):
        raise UserError(f"{sentence}: unset it, or do without agspeed.nccl.enable()")
    os.environ.update(wanted)
