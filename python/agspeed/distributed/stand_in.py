# SPDX-License-Identifier: Apache-2.0
"""Our backend where scripts ask for Gloo, or for none: the scripts stay as they are.

torch makes every group in one function, `_new_process_group_helper` of `torch.distributed.distributed_c10d`. With
`install_as_default` that function gets "agspeed" for what would be Gloo on the CPU; torch's books keep the name that
was asked for, so that `get_backend()`, `monitored_barrier()` and groups made of the default group's backend work as
scripts expect. `groups.find` tells whose group it is.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import distributed

from agspeed import native
from agspeed.errors import AgspeedError
from agspeed.log import warn_once
from agspeed.torch_compat import c10d

__all__ = ["install", "install_as_default"]

_OURS = "agspeed"


def install_as_default() -> None:
    """From now on, groups whose part for the CPU would be Gloo's use this backend there.

    That is "gloo", no backend on a machine without an accelerator, and the Gloo part of "cpu:gloo,cuda:nccl". Groups
    that exist stay what they are. All ranks of a job have to do the same. Repeated calls change nothing; for the whole
    process, from any thread. AGSPEED_AS=gloo does it where torch is imported.

    Raises: AgspeedError where the native extension is missing, or where this torch makes groups in another way.
    """
    if native.load() is None:
        raise AgspeedError(f"agspeed cannot be used in Gloo's place: {native.why_missing()}")
    install()


def install() -> None:
    """`install_as_default` without loading the extension: where that is missing, groups stay Gloo's, with a warning."""
    make = c10d.maker()
    if make is None:
        raise AgspeedError(
            "agspeed cannot be used in Gloo's place: this torch has no "
            'distributed_c10d._new_process_group_helper; use init_process_group("agspeed") instead.'
        )
    if not hasattr(make, "makes_ours"):
        c10d.set_maker(_making_ours(make))


def _making_ours(make: Any) -> Any:
    """`_new_process_group_helper`, but for the backend of CPU tensors."""

    @functools.wraps(make)
    def new_process_group(
        group_size: int, group_rank: int, ranks: list[int], backend: Any, *args: Any, **kwargs: Any
    ) -> Any:
        wanted = _with_ours(backend)
        group, store = made = make(group_size, group_rank, ranks, wanted, *args, **kwargs)
        if wanted != backend and isinstance(group, distributed.ProcessGroup):
            c10d.enter(group, backend, store)
        return made

    new_process_group.makes_ours = True  # type: ignore[attr-defined]
    return new_process_group


def _with_ours(backend: Any) -> Any:
    """The backend with Gloo's part of it replaced where it serves the CPU, and ours is there."""
    try:
        by_device = c10d.backends_by_device(backend)
    except Exception:  # torch will say what is wrong with it
        return backend
    if by_device.get("cpu") != "gloo":
        return backend
    if native.load() is None:
        warn_once(("stand-in",), f"groups are made with Gloo, not with agspeed in its place: {native.why_missing()}")
        return backend
    if set(by_device.values()) == {"gloo"}:
        return c10d.backend_named(_OURS)
    return ",".join(f"{device}:{_OURS if device == 'cpu' else name}" for device, name in by_device.items())
