# SPDX-License-Identifier: Apache-2.0
"""The list of torch.compile's backends. Importing this module loads nothing, `import agspeed` does it."""

from __future__ import annotations

HOME = "torch._dynamo.backends.registry"
"""The module that has the list, loaded with Dynamo."""


def add_backend(name: str, value: str) -> None:
    """Does what an entry point in the group "torch_dynamo_backends" does, also where none is installed: the backend
    is loaded once it is asked for. Needs `_BACKENDS`, whose values may be entry points, of the module HOME, which is
    loaded: torch 2.11 and newer. Without it ``torch.compile(backend="agspeed")`` needs the installed wheel."""
    import sys
    from importlib.metadata import EntryPoint

    backends = getattr(sys.modules[HOME], "_BACKENDS", None)
    if backends is not None:
        backends.setdefault(name, EntryPoint(name, value, "torch_dynamo_backends"))
