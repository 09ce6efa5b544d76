# SPDX-License-Identifier: Apache-2.0
"""Finds where a graph's operators come from, so that the compile child can load them too.

Torch's own operators exist in every process. Other operators come from Python modules, which the child imports, and
from shared libraries, which the child loads. Stateless functions; one thread.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass

import torch
from torch import fx

from agspeed.errors import UnsupportedError
from agspeed.log import logger
from agspeed.torch_compat import operators

_BUILT_IN = frozenset(("aten", "prims"))
_TORCH_HOME = os.path.dirname(torch.__file__) + os.sep


@dataclass(frozen=True)
class Homes:
    """Everything that a process must load before it can run the operators of a graph."""

    modules: list[str]
    libraries: list[str]
    search_path: list[str]


def find_homes(gm: fx.GraphModule) -> Homes:
    """Returns the homes of all operators in `gm` and in the bodies of its higher-order operators.

    Raises: UnsupportedError that names an operator whose module another process cannot import.
    """
    modules: dict[str, None] = {}
    operators = _foreign_operators(gm)
    for name in operators:
        for module in _modules_of(name):
            if (reason := _why_not_importable(module)) is not None:
                raise UnsupportedError(f"operator '{name}' was registered by {reason}")
            modules[module] = None
    libraries = sorted(torch.ops.loaded_libraries) if operators else []
    search_path = [path or os.getcwd() for path in sys.path if isinstance(path, str)]
    return Homes(list(modules), libraries, search_path)


def load_homes(homes: Homes) -> None:
    """Loads the operators into this process. Raises: what an import raises."""
    sys.path[:] = homes.search_path
    for library in homes.libraries:
        try:
            torch.ops.load_library(library)
        except OSError as error:  # the graph may not need it
            logger.debug("%s could not be loaded: %s", library, error)
    for module in homes.modules:
        importlib.import_module(module)


def _foreign_operators(gm: fx.GraphModule) -> list[str]:
    """Returns the names of all operators that torch itself does not define, such as "library::operator"."""
    found: dict[str, None] = {}
    for part in gm.modules():
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            if (name := operators.name_of(node.target)) is not None:
                found[name] = None
    return [name for name in found if name.partition("::")[0] not in _BUILT_IN]


def _modules_of(name: str) -> list[str]:
    """Returns the modules that registered `name`, its kernels or its shape function, as far as torch records them."""
    said = [operators.defining_module(name), operators.announced_module(name)]
    found = [*said, *map(_module_of_file, operators.registering_files(name))]
    return list(dict.fromkeys(module for module in found if module is not None))


def _module_of_file(path: str) -> str | None:
    """Returns the module that was loaded from `path`; None for torch's own modules and if none is loaded from it."""
    if path.startswith("<"):  # "<stdin>", "<string>"
        return "__main__"
    if path.startswith(_TORCH_HOME):
        return None
    loaded = sys.modules.copy().items()
    return next((name for name, module in loaded if getattr(module, "__dict__", {}).get("__file__") == path), None)


def _why_not_importable(module: str) -> str | None:
    """Returns the end of a sentence that begins "it was registered by"; None if another process can import the
    module."""
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
