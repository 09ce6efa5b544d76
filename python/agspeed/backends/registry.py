# SPDX-License-Identifier: Apache-2.0
"""Finds candidates: first in the modules of this package, then in the entry points of ``agspeed.backends``.

The order matters if no timing decides (``mode="deterministic"``): built-in candidates by `_ORDER`, then others by name.
A third-party candidate that fails to load is reported once and left out. It can never replace a built-in one.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from importlib import metadata
from pathlib import Path

from agspeed.backends.base import Candidate
from agspeed.errors import UserError
from agspeed.log import warn_once

ENTRY_POINT_GROUP = "agspeed.backends"
_ORDER = (
    "native",
    "native-channels-last",
    "inductor",
    "inductor-cudagraphs",
    "inductor-staged",
    "inductor-max-autotune",
    "cudagraph",
    "aot",
    "graph-eager",
    "torchscript",
)


@functools.cache
def candidates() -> dict[str, Candidate]:
    """Returns all candidates by name, in order of preference. Loads them once per process."""
    found = _built_in()
    for name, loaded in _third_party().items():
        if name in found:
            warn_once(f"backend-{name}", f"backend plug-in {name!r} has the name of a built-in backend and is ignored")
            continue
        found[name] = loaded
    return found


def candidate_names() -> list[str]:
    """Returns the names that ``backends=`` accepts, including "eager"."""
    return ["eager", *candidates()]


def candidate(name: str) -> Candidate:
    """Returns the candidate of that name. Raises: UserError that names the known candidates."""
    try:
        return candidates()[name]
    except KeyError:
        known = ", ".join(candidate_names())
        raise UserError(f"unknown backend {name!r}: the backends here are {known}") from None


def _built_in() -> dict[str, Candidate]:
    found: dict[str, Candidate] = {}
    for module_info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        module = importlib.import_module(f"agspeed.backends.{module_info.name}")
        for member in vars(module).values():
            if _is_candidate_class(member) and member.__module__ == module.__name__:
                found[member.name] = member()
    return {name: found[name] for name in sorted(found, key=_rank)}


def _third_party() -> dict[str, Candidate]:
    found: dict[str, Candidate] = {}
    for entry in sorted(metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda e: e.name):
        try:
            loaded = entry.load()
            if not _is_candidate_class(loaded):
                raise TypeError(f"{entry.value} is not a subclass of agspeed.backends.Candidate")
            found[entry.name] = loaded()
        except Exception as error:  # a broken plug-in must not break agspeed
            warn_once(f"backend-{entry.name}", f"backend plug-in {entry.name!r} could not be loaded: {error}")
    return found


def _is_candidate_class(member: object) -> bool:
    return isinstance(member, type) and issubclass(member, Candidate) and hasattr(member, "name")


def _rank(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)
