# SPDX-License-Identifier: Apache-2.0
"""Reports the features that are lost because this torch, or the native extension, does not fit. It warns once.

Each function returns a sentence. The warning, the status and the report all use that sentence; with ``strict=True`` it
becomes an error. The missing parts decide which features are lost, never torch's version number alone (`probe.py`).
Only the native extension is built for a single minor release.

Any thread. Each sentence is logged once per process.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from agspeed.errors import UnsupportedError
from agspeed.log import warn_once
from agspeed.native_files import extension_for
from agspeed.torch_compat import probe
from agspeed.torch_compat.release import version


def of_extension() -> str | None:
    """Why nothing can be tuned because the native extension is missing, or None. It does not load the extension."""
    extension, why_not = extension_for(version())
    return None if extension is not None else f"nothing is tuned, models train eagerly: {why_not}"


def of_candidates(backends: Sequence[str] | None, device: str) -> str:
    """The features that the candidates of `backends` (None: all) lack on a type of device; "" if they lack none."""
    of_use = {"inductor": "inductor", **({"memory": "cudagraph"} if device == "cuda" else {})}
    wanted = [part for part, word in of_use.items() if backends is None or any(word in name for name in backends)]
    return _of(wanted) or ""


def of_shards() -> str | None:
    """Why a module with units of `fully_shard` runs eagerly, or None."""
    return _of(("fsdp",))


def of_ranks() -> str | None:
    """Why a model runs eagerly in a job of several ranks, or None. Always None in a process without a group."""
    import torch

    is_used = torch.distributed.is_available() and torch.distributed.is_initialized()
    return _of_ranks() if is_used else None


def tell(name: str, reason: str, *, strict: bool, plan: str = "eager") -> None:
    """Warns that the target `name` runs without some features. Raises: UnsupportedError if `strict` is set."""
    if strict:
        raise UnsupportedError(f"{name}: {reason} (raised because strict is set)")
    warn_once(("misfit", reason), f"{name}: {plan} ({reason})")


@functools.cache
def _of_ranks() -> str | None:
    return _of(probe.FOR_RANKS)


def _of(parts: Sequence[str]) -> str | None:
    found = probe.misfit(parts)
    return f"{found}: {probe.remedy()}" if found is not None else None
