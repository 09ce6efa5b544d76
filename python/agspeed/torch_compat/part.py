# SPDX-License-Identifier: Apache-2.0
"""Part: the names that a module of torch_compat takes from torch, as one table that loads and checks them.

A need is a dotted name, e.g. "torch._dynamo.pgo._CODE_STATE". The last word may be an attribute of a class's objects,
which the class, its annotations or its methods define. A need with parameters, e.g. "torch._dynamo.optimize(dynamic)",
is a function that accepts them. Stateless; any thread.
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
    """The table of one module (see the module's docstring)."""

    name: str
    module: str
    """The `__name__` of the module of torch_compat."""
    exports: tuple[str, ...] = ()
    """Dotted names. The module offers each one under its last word; `load` finds it."""
    needs: tuple[str, ...] = ()
    """More dotted names, which the module's functions use."""
    lost: str = "nothing is tuned, models train eagerly"
    """A sentence that says what is lost without the part."""

    def load(self, name: str) -> Any:
        """The module's `__getattr__`: returns an export, and imports it at its first use.

        Raises: UnsupportedError if this torch does not have the export, AttributeError if `name` is not an export, and
        any error of the import.
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
        """The first need that this torch does not meet, as a sentence, or None.

        With `may_import`, it loads modules that are not loaded; otherwise it reads their text.
        """
        for path in (*self.exports, *self.needs):
            try:
                missing = first_missing(path, may_import=may_import)
            except Exception as error:  # a module of torch fails to load
                missing = f"{path} that loads ({type(error).__name__}: {error})"
            if missing is not None:
                return self.sentence(missing)
        return None

    def require(self) -> None:
        """Loads all names of the part. Raises: UnsupportedError for the first need that this torch does not meet."""
        if (reason := self.misfit(may_import=True)) is not None:
            raise UnsupportedError(reason)

    def sentence(self, missing: str) -> str:
        """The sentence for a missing name."""
        return f"part `{self.name}`: torch {version()} has no {missing}; {self.lost}"


def first_missing(need: str, *, may_import: bool) -> str | None:
    """The shortest prefix of a dotted name that torch does not have, or None. Raises: any error of an import."""
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
    """Whether a module or an object has an attribute, or, for a class, whether its objects have it."""
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
    """Whether a method, wrapped or not, assigns to an attribute `name` of some object."""
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
    """Returns the first of `words` if the text of a module that is not loaded does not define it, else None."""
    if not words or origin is None or not origin.endswith(".py") or origin.endswith("__init__.py"):
        return None
    word = words[0]
    if word == "patch":  # a module of settings gets this attribute when it is loaded
        return None
    with open(origin, encoding="utf-8") as file:
        lines = [line for line in file if word in line]
    defines = re.compile(
        rf"(async def|def|class) {word}\b|{word}\s*[:=]|.*\bimport\b.*\b{word}\b|\s+{word},|.*\bas {word}\b"
    )
    return None if any(map(defines.match, lines)) else f"{module}.{word}"


def _found(path: str) -> Any:
    """The object with a dotted name, in loaded modules."""
    if path in sys.modules:
        return sys.modules[path]
    home, _, leaf = path.rpartition(".")
    return getattr(_found(home), leaf)
