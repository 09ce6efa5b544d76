# SPDX-License-Identifier: Apache-2.0
"""Calls a function once a module is loaded, without loading the module. This keeps importing agspeed cheap.

Thread-safety: as for Python's import system; the function runs under the module's import lock.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

__all__ = ["when_loaded"]


def when_loaded(module: str, act: Callable[[], None]) -> None:
    """Calls `act` now if `module` is loaded, else right after it was loaded."""
    if module in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _Watch(module, act))


class _Watch:
    """Finds one module as Python would, and calls `act` after the module's code has run.

    It is no subclass of importlib.abc.MetaPathFinder, because that module takes long to import.
    """

    def __init__(self, module: str, act: Callable[[], None]) -> None:
        self._module = module
        self._act = act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_act(module: ModuleType) -> None:
                run(module)
                sys.meta_path.remove(self)
                self._act()

            spec.loader.exec_module = run_and_act  # type: ignore[method-assign]
        return spec
