# SPDX-License-Identifier: Apache-2.0
"""The list of torch.compile's backends. `import agspeed` imports this module, which loads nothing."""

from __future__ import annotations

HOME = "torch._dynamo.backends.registry"
"""The module that has the list. Dynamo loads it."""


def add_backend(name: str, value: str) -> None:
    """Registers a backend as an entry point in the group "torch_dynamo_backends" would, without an installed wheel.

    torch loads the backend at its first use. The function needs `_BACKENDS` of the loaded module HOME, whose values may
    be entry points: torch 2.11 and newer. Without it, ``torch.compile(backend="agspeed")`` needs the installed wheel.
    """
    import sys
    from importlib.metadata import EntryPoint

    backends = getattr(sys.modules[HOME], "_BACKENDS", None)
    if backends is not None:
        backends.setdefault(name, EntryPoint(name, value, "torch_dynamo_backends"))
