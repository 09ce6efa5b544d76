# SPDX-License-Identifier: Apache-2.0
"""Checks which parts of this torch fit agspeed, and says which features are lost if one does not.

A torch is judged by its parts, never by its number: agspeed uses all parts of a newer minor release that fit. The check
has no side effects: it compiles nothing, changes no setting, and imports nothing unless the caller permits it. Any
thread.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterable

from agspeed.torch_compat.part import Part
from agspeed.torch_compat.release import minor, version

OLDEST, NEWEST = (2, 11), (2, 15)
"""The oldest and the newest minor release that agspeed is tested with."""
NEEDED_BY_ALL = (
    "aot_autograd",
    "autograd",
    "checkpoint",
    "dynamo",
    "graphs",
    "modes",
    "modules",
    "operators",
    "shapes",
)
FOR_RANKS = ("c10d", "ddp")
_OTHERS = ("fsdp", "inductor", "job_store", "log_messages", "memory", "partitioner", "wrong_captures")
PARTS = tuple(sorted((*NEEDED_BY_ALL, *FOR_RANKS, *_OTHERS)))


def probe(parts: Iterable[str] = PARTS, *, may_import: bool = False) -> dict[str, str]:
    """Returns, by part, a sentence with the missing name and the lost features; "" if the part fits.

    may_import: the probe loads modules of torch that are not loaded yet, which takes seconds. Otherwise it reads their
    text, which takes some milliseconds.
    """
    num_loaded = sum(module.startswith("torch.") for module in list(sys.modules))
    return {name: _misfit(name, may_import, num_loaded) for name in parts}


def misfit(parts: Iterable[str]) -> str | None:
    """The sentences of all parts that do not fit, joined, or None. Repeated calls cost nothing, unless modules of torch
    were loaded in between."""
    found = [sentence for sentence in probe(parts).values() if sentence]
    return "; ".join(found) or None


def remedy() -> str:
    """The commands that fix a misfit, as a part of a sentence."""
    tested = f"{NEWEST[0]}.{NEWEST[1]}"
    return f'`pip install --upgrade agspeed` or `pip install "torch=={tested}.*"` mends it'


def to_json() -> dict[str, str]:
    """The result of `probe` for `agspeed doctor`: checks all parts, and loads modules for that."""
    return probe(may_import=True)


@functools.cache
def part(name: str) -> Part:
    """The table of a part."""
    found: Part = importlib.import_module(f"agspeed.torch_compat.{name}").PART
    return found


@functools.lru_cache(maxsize=128)
def _misfit(name: str, may_import: bool, _num_loaded: int) -> str:
    table = part(name)
    if minor() < OLDEST:
        return f"part `{name}`: torch {version()} is older than {OLDEST[0]}.{OLDEST[1]}; {table.lost}"
    if name in (*FOR_RANKS, "fsdp") and not _is_distributed():
        return f"part `{name}`: torch {version()} was built without torch.distributed; {table.lost}"
    return table.misfit(may_import=may_import) or ""


def _is_distributed() -> bool:
    import torch

    return torch.distributed.is_available()
