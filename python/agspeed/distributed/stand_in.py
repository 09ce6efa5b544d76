# SPDX-License-Identifier: Apache-2.0
"""Uses our backend in scripts that ask for Gloo, or for no backend, without changes to the scripts.

torch creates every group in one function, `_new_process_group_helper` of `torch.distributed.distributed_c10d`.
`install_as_default` replaces Gloo on the CPU by "agspeed" in that function's arguments. torch's records keep the name
that the script asked for. So `get_backend()`, `monitored_barrier()` and groups with the default group's backend work as
scripts expect. `groups.find` returns our backend of such a group.
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
    """From now on, new groups use this backend wherever they would use Gloo for the CPU.

    Examples are "gloo", no backend on a machine without an accelerator, and the Gloo part of "cpu:gloo,cuda:nccl".
    Existing groups do not change. All ranks of a job must make the same call. It holds for the whole process, may come
    from any thread, and may be repeated. AGSPEED_AS=gloo makes the call when torch is imported.

    Raises: AgspeedError if the native extension is missing, or if this torch creates groups in another way.
    """
    if native.load() is None:
        raise AgspeedError(f"agspeed cannot be used in Gloo's place: {native.why_missing()}")
    install()


def install() -> None:
    """Like `install_as_default`, but does not load the extension. Without it, groups stay with Gloo and a warning is
    logged."""
    make = c10d.maker()
    if make is None:
        raise AgspeedError(
            "agspeed cannot be used in Gloo's place: this torch has no "
            'distributed_c10d._new_process_group_helper; use init_process_group("agspeed") instead.'
        )
    if not hasattr(make, "makes_ours"):
        c10d.set_maker(_making_ours(make))


def _making_ours(make: Any) -> Any:
    """Wraps `_new_process_group_helper` so that it replaces the backend for CPU tensors."""

    @functools.wraps(make)
    def new_process_group(
        group_size: int, group_rank: int, ranks: list[int], backend: Any, *args: Any, **kwargs: Any
    ) -> Any:
        wanted = _with_ours(backend)
        group, store = made = make(group_size, group_rank, ranks, wanted, *args, **kwargs)
        if wanted != backend and isinstance(group, distributed.ProcessGroup):
            c10d.enter(group, backend, store)
        return made

    marked: Any = new_process_group
    marked.makes_ours = True
    return new_process_group


def _with_ours(backend: Any) -> Any:
    """Returns the backend with Gloo replaced by ours for the CPU; unchanged if the native extension is missing."""
    try:
        by_device = c10d.backends_by_device(backend)
    except Exception:  # torch itself will report what is wrong with it
        return backend
    if by_device.get("cpu") != "gloo":
        return backend
    if native.load() is None:
        warn_once(("stand-in",), f"groups are made with Gloo, not with agspeed in its place: {native.why_missing()}")
        return backend
    if set(by_device.values()) == {"gloo"}:
        return c10d.backend_named(_OURS)
    return ",".join(f"{device}:{_OURS if device == 'cpu' else name}" for device, name in by_device.items())
