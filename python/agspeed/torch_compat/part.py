# SPDX-License-Identifier: Apache-2.0
"""Part: what a module of torch_compat takes from torch, as one table by which its names are loaded and probed.

A need is a dotted name, "torch._dynamo.pgo._CODE_STATE" say. Behind a class it may be an attribute that the class, its
annotations or its methods give to each object; with parameters behind it, "torch._dynamo.optimize(dynamic)", it is
something that takes them. Stateless; any thread.
"""

from __future__ import annotations

import dataclasses
import dis
import importlib
import importlib.util
import inspect
import re
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from agspeed.errors import UnsupportedError
from agspeed.torch_compat.release import version


@dataclass(frozen=True)
class Part:
    """See the module's text."""

    name: str
    module: str
    """The module of torch_compat, its `__name__`."""
    exports: tuple[str, ...] = ()
    """Dotted names; the module offers each under its last word, and `load` finds it."""
    needs: tuple[str, ...] = ()
    """Dotted names that the module's functions use as well."""
    lost: str = "nothing is tuned, models train eagerly"
    """Without the part, as a sentence."""

    def load(self, name: str) -> Any:
        """The module's `__getattr__`: an export, imported when it is asked for first.

        Raises: UnsupportedError where this torch does not have it, AttributeError for what is no export, and what an
        import of torch's raises.
        """
        path = next((path for path in self.exports if path.rpartition(".")[2] == name), None)
        if path is None:
            raise AttributeError(f"module {self.module!r} has no attribute {name!r}")
        if (missing := first_missing(path, may_import=True)) is not None:
            raise UnsupportedError(self.sentence(missing))
        home, _, leaf = path.rpartition(".")
        found = getattr(_found(home), leaf)
        setattr(sys.modules[self.module], name, found)
        return found

    def misfit(self, *, may_import: bool) -> str | None:
        """The first need that this torch does not meet, as a sentence, or None. Modules that are not loaded are
        loaded if `may_import`, else their text is looked at."""
        for path in (*self.exports, *self.needs):
            try:
                missing = first_missing(path, may_import=may_import)
            except Exception as error:  # a module of torch that does not load
                missing = f"{path} that loads ({type(error).__name__}: {error})"
            if missing is not None:
                return self.sentence(missing)
        return None

    def require(self) -> None:
        """Raises: UnsupportedError for the first need that this torch does not meet. Loads what the part needs."""
        if (reason := self.misfit(may_import=True)) is not None:
            raise UnsupportedError(reason)

    def sentence(self, missing: str) -> str:
        """What is said of a name that is not there."""
        return f"part `{self.name}`: torch {version()} has no {missing}; {self.lost}"


def first_missing(need: str, *, may_import: bool) -> str | None:
    """The shortest beginning of a dotted name that torch does not have, or None. Raises: what an import raises."""
    path, _, parameters = need.rstrip(")").partition("(")
    words = path.split(".")
    found: Any = importlib.import_module(words[0])
    for at in range(1, len(words)):
        name, word = ".".join(words[: at + 1]), words[at]
        is_there = isinstance(found, ModuleType) and word in vars(found)
        if (module := sys.modules.get(name)) is not None:
            found = module
        elif is_there and at == len(words) - 1:
            found = vars(found)[word]
        elif isinstance(found, ModuleType) and (spec := _spec_of(found, name)) is not None:
            if not may_import:
                return _missing_in_text(spec.origin, name, words[at + 1 :])
            found = importlib.import_module(name)
        elif not has(found, word):
            return name
        else:
            found = getattr(found, word, None)
    refused = [name for name in parameters.split(", ") if name and not _takes(found, name)]
    return f"{path}({refused[0]}=...)" if refused else None


def has(owner: Any, name: str) -> bool:
    """Whether a module or an object has an attribute, or the objects of a class do."""
    if hasattr(owner, name):
        return True
    if not isinstance(owner, type):
        return False
    if dataclasses.is_dataclass(owner) and any(field.name == name for field in dataclasses.fields(owner)):
        return True
    return any(
        name in vars(base).get("__annotations__", {}) or any(_sets(value, name) for value in vars(base).values())
        for base in owner.__mro__
    )


def _sets(method: Any, name: str) -> bool:
    """Whether a method, whatever wraps it, gives some object the attribute `name`."""
    code = getattr(getattr(method, "__wrapped__", method), "__code__", None)
    if code is None or name not in code.co_names:
        return False
    return any(step.opname == "STORE_ATTR" and step.argval == name for step in dis.get_instructions(code))


def _takes(function: Any, parameter: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C++
        return True
    return parameter in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _spec_of(package: ModuleType, name: str) -> Any:
    if not hasattr(package, "__path__"):
        return None
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _missing_in_text(origin: str | None, module: str, words: list[str]) -> str | None:
    """The name that a module which is not loaded does not define, as far as its text tells."""
    if not words or origin is None or not origin.endswith(".py") or origin.endswith("__init__.py"):
        return None
    word = words[0]
    if word == "patch":  # of a module of settings, which gets it when it is loaded
        return None
    with open(origin, encoding="utf-8") as file:
        lines = [line for line in file if word in line]
    defines = re.compile(
        rf"(async def|def|class) {word}\b|{word}\s*[:=]|.*\bimport\b.*\b{word}\b|\s+{word},|.*\bas {word}\b"
    )
    return None if any(map(defines.match, lines)) else f"{module}.{word}"


def _found(path: str) -> Any:
    """The object that a dotted name stands for, among loaded modules."""
    if path in sys.modules:
        return sys.modules[path]
    home, _, leaf = path.rpartition(".")
    return getattr(_found(home), leaf)
