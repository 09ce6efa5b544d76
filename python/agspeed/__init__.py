# SPDX-License-Identifier: Apache-2.0
"""agspeed: switch on faster PyTorch training with one line.

    model = agspeed.optimize(model)

Importing this package is cheap: torch and the native extension are loaded at the first call, so the command line
works on machines without torch. The import registers the backend "agspeed" with torch.distributed and torch.compile.
``__all__`` lists the public names. Each is documented at its definition.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agspeed.autoload import register_once_loaded
from agspeed.torch_compat import registry
from agspeed.version import __version__ as __version__
from agspeed.when_loaded import when_loaded

__all__ = ["AgspeedError", "UserError", "optimize", "paused", "report", "restore", "status", "wait"]

if TYPE_CHECKING:
    from agspeed.errors import AgspeedError, UserError
    from agspeed.frontend.api import optimize, paused, report, restore, status, wait

_HOMES = {
    "AgspeedError": "agspeed.errors",
    "UserError": "agspeed.errors",
    "optimize": "agspeed.frontend.api",
    "paused": "agspeed.frontend.api",
    "report": "agspeed.frontend.api",
    "restore": "agspeed.frontend.api",
    "status": "agspeed.frontend.api",
    "wait": "agspeed.frontend.api",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'agspeed' has no attribute {name!r}; it offers {', '.join(__all__)}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def _register_backend_of_torch_compile() -> None:
    registry.add_backend("agspeed", "agspeed.frontend.dynamo_backend:agspeed_backend")


register_once_loaded()
when_loaded(registry.HOME, _register_backend_of_torch_compile)
