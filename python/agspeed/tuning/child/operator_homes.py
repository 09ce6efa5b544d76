# SPDX-License-Identifier: Apache-2.0
"""Where a graph's operators come from, so that the compile child can know them too.

Operators of torch itself are there in every process. Those of libraries and of the user's Python come with the modules
that registered them, which the child imports, and with shared libraries, which it loads. Stateless functions; one
thread.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._library.custom_ops import OPDEFS
from torch._library.simple_registry import singleton as _registrations

from agspeed.errors import UnsupportedError
from agspeed.log import logger

_BUILT_IN = frozenset(("aten", "prims"))
_REGISTERED_AT = re.compile(r"registered at (.+\.py|<.+>):\d+")
_TORCH_HOME = os.path.dirname(torch.__file__) + os.sep


@dataclass(frozen=True)
class Homes:
    """What a process needs before it knows the operators of a graph."""

    modules: list[str]
    libraries: list[str]
    search_path: list[str]


def find_homes(gm: fx.GraphModule) -> Homes:
    """The homes of all operators in `gm` and its bodies.

    Raises: UnsupportedError naming an operator whose module another process cannot import.
    """
    modules: dict[str, None] = {}
    operators = _foreign_operators(gm)
    for name in operators:
        for module in _modules_of(name):
            if (reason := _why_not_importable(module)) is not None:
                raise UnsupportedError(f"operator '{name}' was registered by {reason}")
            modules[module] = None
    libraries = sorted(torch.ops.loaded_libraries) if operators else []
    return Homes(list(modules), libraries, [path or os.getcwd() for path in sys.path])


def load_homes(homes: Homes) -> None:
    """Makes the operators known to this process. Raises: what an import raises."""
    sys.path[:] = homes.search_path
    for library in homes.libraries:
        try:
            torch.ops.load_library(library)  # type: ignore[no-untyped-call]
        except OSError as error:  # the graph may not need it
            logger.debug("%s could not be loaded: %s", library, error)
    for module in homes.modules:
        importlib.import_module(module)


def _foreign_operators(gm: fx.GraphModule) -> list[str]:
    """Names, as in "library::operator"."""
    found: dict[str, None] = {}
    for part in gm.modules():
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            if isinstance(node.target, torch._ops.OpOverload):
                found[node.target._schema.name] = None
            elif isinstance(node.target, torch._ops.OpOverloadPacket):
                found[node.target._qualified_op_name] = None
    return [name for name in found if name.partition("::")[0] not in _BUILT_IN]


def _modules_of(name: str) -> list[str]:
    """The modules that registered `name`, its kernels or its shape function, as far as torch remembers them."""
    found: dict[str, None] = {}
    if name in OPDEFS:
        found[OPDEFS[name]._init_fn.__module__] = None
    stub: Any = None
    with contextlib.suppress(RuntimeError):
        stub = torch._C._dispatch_pystub(name, "")
    if stub is not None:
        found[stub[0]] = None
    for path in _registering_files(name):
        if (module := _module_of_file(path)) is not None:
            found[module] = None
    return list(found)


def _registering_files(name: str) -> Iterator[str]:
    overloads = torch._C._jit_get_operation(name)[1] or []
    for overload in overloads:
        yield from _REGISTERED_AT.findall(torch._C._dispatch_dump(f"{name}.{overload}" if overload else name))
    kernel = _registrations.find(name).fake_impl.kernel
    if kernel is not None:
        yield kernel.source.rpartition(":")[0]


def _module_of_file(path: str) -> str | None:
    """The module that was loaded from `path`; None for torch's own and for what is no module any more."""
    if path.startswith("<"):  # "<stdin>", "<string>"
        return "__main__"
    if path.startswith(_TORCH_HOME):
        return None
    loaded = sys.modules.copy().items()
    return next((name for name, module in loaded if getattr(module, "__dict__", {}).get("__file__") == path), None)


def _why_not_importable(module: str) -> str | None:
    """Ends the sentence "it was registered by"; None for a module that another process can import."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    if module == "__main__" or spec is None or getattr(spec, "_initializing", False):
        return (
            f"'{module}', the program that runs, which no other process can import: move the operator to a module of "
            "its own"
        )
    package = sys.modules.get(module.rpartition(".")[0])
    path = getattr(package, "__path__", None)
    if any(finder.find_spec(module, path) is not None for finder in sys.meta_path):
        return None
    return f"'{module}', which another process cannot import: no file of that name is on sys.path"
