# SPDX-License-Identifier: Apache-2.0
"""Lets `import horovod` find agspeed.horovod, with the modules that scripts import from it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

from agspeed.errors import UserError

__all__ = ["install_alias", "is_installed"]

_NAME = "horovod"
_HOMES = {
    "horovod": "agspeed.horovod",
    "horovod.common": "agspeed.horovod",
    "horovod.common.elastic": "agspeed.horovod.torch.elastic",
    "horovod.common.exceptions": "agspeed.horovod.exceptions",
    "horovod.common.process_sets": "agspeed.horovod.torch.process_sets",
}
_SAME = ("horovod.ray", "horovod.torch")
"""These modules and their submodules have the same names in this package."""


class _Alias(Loader):
    """Loads our module in place of one of Horovod's."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._home)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # our module keeps its own name


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.split(".")[0] != _NAME:
            return None
        home = _HOMES.get(fullname)
        if home is None and ".".join(fullname.split(".")[:2]) in _SAME:
            home = f"agspeed.{fullname}"
        if home is None:
            raise ModuleNotFoundError(
                f"agspeed.horovod has no {fullname}: it stands for horovod.torch and horovod.ray only; install Horovod "
                "for the rest.",
                name=fullname,
            )
        return spec_from_loader(fullname, _Alias(home), is_package=True)


def is_installed() -> bool:
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def install_alias() -> None:
    """Makes `import horovod`, `horovod.torch` and `horovod.ray` find agspeed.horovod from now on. Repeated calls change
    nothing.

    Raises: UserError if Horovod itself has been imported already.
    """
    if is_installed():
        return
    if _NAME in sys.modules:
        raise UserError(
            f"horovod has been imported already, from {getattr(sys.modules[_NAME], '__file__', None)}: call "
            "agspeed.horovod.install_alias() before, or change the import to agspeed.horovod.torch."
        )
    sys.meta_path.insert(0, _Finder())
