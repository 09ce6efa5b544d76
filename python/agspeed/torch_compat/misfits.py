# SPDX-License-Identifier: Apache-2.0
"""What is lost because this torch, or what was built for it, is not as expected: said once, and never in silence.

Each function gives a sentence for the warning, the status and the report, which are to say the same; with
``strict=True`` it is an error. What is lost is decided by what is missing, never by torch's number alone
(`probe.py`); only the native extension is made for one minor each.

Any thread; the warning comes once per sentence and process.
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
    """Why nothing can be tuned here for want of a native extension, whose file is looked for; it is not loaded."""
    extension, why_not = extension_for(version())
    return None if extension is not None else f"nothing is tuned, models train eagerly: {why_not}"


def of_candidates(backends: Sequence[str] | None, device: str) -> str:
    """What the candidates among `backends` (None: all) cannot do on a type of device; "" where they can do all."""
    of_use = {"inductor": "inductor", **({"memory": "cudagraph"} if device == "cuda" else {})}
    wanted = [part for part, word in of_use.items() if backends is None or any(word in name for name in backends)]
    return _of(wanted) or ""


def of_shards() -> str | None:
    """Why a module that `fully_shard` was called for runs eagerly, or None."""
    return _of(("fsdp",))


def of_ranks() -> str | None:
    """Why a model of one of several ranks runs eagerly; None in a process that has no group."""
    import torch

    is_used = torch.distributed.is_available() and torch.distributed.is_initialized()
    return _of_ranks() if is_used else None


def tell(name: str, reason: str, *, strict: bool, plan: str = "eager") -> None:
    """Warns that the target `name` runs with less than it could. Raises: UnsupportedError where `strict` is set."""
    if strict:
        raise UnsupportedError(f"{name}: {reason} (raised because strict is set)")
    warn_once(("misfit", reason), f"{name}: {plan} ({reason})")


@functools.cache
def _of_ranks() -> str | None:
    return _of(probe.FOR_RANKS)


def _of(parts: Sequence[str]) -> str | None:
    found = probe.misfit(parts)
    return f"{found}: {probe.remedy()}" if found is not None else None
