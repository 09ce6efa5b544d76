# SPDX-License-Identifier: Apache-2.0
"""The backend "agspeed" of torch.distributed.

    torch.distributed.init_process_group("agspeed")              # or "cpu:agspeed,cuda:nccl"

Installing the wheel is all it takes: torch calls `register` by the entry point "torch.backends". In a checkout, or with
TORCH_DEVICE_BACKEND_AUTOLOAD=0, `import agspeed` does it: at once where torch.distributed is loaded, and as soon
as it is loaded where not, so that importing agspeed stays cheap. The transport itself is C++ (``comm/``); without the
native extension ``init_process_group`` raises one sentence that says why it is missing.

Scripts that name Gloo, or no backend, get ours with AGSPEED_AS=gloo or `install_as_default` (stand_in.py).

Beyond torch.distributed's own functions there are `monitored_barrier` (groups.py), `counters`, `flight_record` and
`prometheus` (metrics.py), and `trace` (tracing.py).
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agspeed.when_loaded import when_loaded

if TYPE_CHECKING:
    from agspeed.distributed.groups import monitored_barrier
    from agspeed.distributed.metrics import counters, flight_record, prometheus
    from agspeed.distributed.stand_in import install_as_default
    from agspeed.distributed.tracing import trace

__all__ = [
    "BACKEND",
    "counters",
    "flight_record",
    "install_as_default",
    "monitored_barrier",
    "prometheus",
    "register",
    "register_once_loaded",
    "trace",
]

BACKEND = "agspeed"
_HOMES = {
    "counters": "metrics",
    "flight_record": "metrics",
    "install_as_default": "stand_in",
    "monitored_barrier": "groups",
    "prometheus": "metrics",
    "trace": "tracing",
}


def __getattr__(name: str) -> Any:
    """These load torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def register() -> None:
    """Makes the backend known to torch.distributed, and the one for unchanged scripts where the settings ask for that.
    Repeated calls change nothing.
    """
    from torch import distributed

    if distributed.is_available() and BACKEND not in distributed.Backend.backend_list:
        distributed.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
        if "AGSPEED_AS" in os.environ or _may_have_settings_file():
            from agspeed.distributed.stand_in import install_as_settings_say

            install_as_settings_say()


def _may_have_settings_file() -> bool:
    """Whether `config.find_files` may find one, told in microseconds: nothing else is loaded while torch is."""
    try:
        folders = [Path.cwd(), *Path.cwd().parents, Path.home() / ".config" / BACKEND]
        return any(os.path.exists(folder / "agspeed.toml") for folder in folders)
    except (OSError, RuntimeError):  # the working directory is gone, or there is no home
        return False


def register_once_loaded() -> None:
    """Registers now if torch.distributed is loaded, else when it has been."""
    when_loaded("torch.distributed", register)


def _create(options: Any, backend_options: Any) -> Any:
    """What torch.distributed calls to make a group; `backend_options` are those of other backends."""
    from agspeed import config, native
    from agspeed.distributed.ddp_logging import name_backend
    from agspeed.errors import AgspeedError
    from agspeed.log import warn_once

    for sentence in config.resolve().warnings:
        warn_once(sentence, sentence)
    module = native.load()
    if module is None:
        raise AgspeedError(f'the torch.distributed backend "{BACKEND}" is not there: {native.why_missing()}')
    name_backend()
    native.configure()  # once more: variables may have been set since it was loaded
    return module.create_process_group(options)
