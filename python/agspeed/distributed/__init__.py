# SPDX-License-Identifier: Apache-2.0
"""The backend "agspeed" of torch.distributed.

    torch.distributed.init_process_group("agspeed")              # or "cpu:agspeed,cuda:nccl"

The installed wheel registers the backend by itself; in a checkout, `import agspeed` registers it (autoload.py). The
transport is C++ (``comm/``). Without the native extension, ``init_process_group`` raises an error that says why the
extension is missing.

Scripts that name Gloo, or no backend, use this backend with AGSPEED_AS=gloo or `install_as_default` (stand_in.py).

Beyond torch.distributed's own functions there are `monitored_barrier` (groups.py), `counters`, `flight_record` and
`prometheus` (metrics.py), and `trace` (tracing.py). `hooks` sends the gradients of `DistributedDataParallel` in fewer
bytes, and `local_steps` (diloco) lets ranks exchange once in many steps.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agspeed.distributed import hooks
    from agspeed.distributed.diloco import local_steps
    from agspeed.distributed.groups import monitored_barrier
    from agspeed.distributed.metrics import counters, flight_record, prometheus
    from agspeed.distributed.stand_in import install_as_default
    from agspeed.distributed.tracing import trace

__all__ = [
    "BACKEND",
    "counters",
    "flight_record",
    "hooks",
    "install_as_default",
    "local_steps",
    "monitored_barrier",
    "prometheus",
    "register",
    "trace",
]

BACKEND = "agspeed"
_HOMES = {
    "counters": "metrics",
    "flight_record": "metrics",
    "install_as_default": "stand_in",
    "local_steps": "diloco",
    "monitored_barrier": "groups",
    "prometheus": "metrics",
    "trace": "tracing",
}


def __getattr__(name: str) -> Any:
    """Imports a public function at its first use, because its module imports torch."""
    if name == "hooks":
        return importlib.import_module(f"{__name__}.hooks")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def register() -> None:
    """Registers the backend with torch.distributed, and keeps the stores of single-host jobs off the network.

    Repeated calls change nothing.
    """
    from torch import distributed

    from agspeed.distributed import core_functions
    from agspeed.torch_compat import job_store

    if not distributed.is_available():
        return
    if BACKEND not in distributed.Backend.backend_list:
        distributed.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
        core_functions.install()
    job_store.listen_on_one_address()


def _create(options: Any, backend_options: Any) -> Any:
    """Creates a group when torch.distributed asks for one. `backend_options` belong to other backends."""
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
    native.configure()  # once more, because variables may have been set since the extension was loaded
    return module.create_process_group(options)
