# SPDX-License-Identifier: Apache-2.0
"""Process groups of ours behind torch's, and what torch.distributed offers to Gloo's groups only."""

from __future__ import annotations

import datetime
from typing import Any

from torch import distributed

from agspeed import native
from agspeed.errors import UserError
from agspeed.torch_compat import c10d

__all__ = ["backend_of", "find", "monitored_barrier", "require", "world_size"]


def world_size() -> int:
    """Ranks of this job, whatever their backend; 1 where torch.distributed is not in use."""
    is_used = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if is_used else 1


def backend_of(group: Any) -> str:
    """The backend of one of torch's groups: "agspeed" where it is ours, whatever name it was made under."""
    return "agspeed" if find(group) is not None else distributed.get_backend(group)


def find(group: Any = None) -> Any | None:
    """Our part of one of torch's groups (the default group by default); None where it has other backends."""
    module = native.load()
    if module is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    whole: Any = group if group is not None else distributed.group.WORLD
    for backend in map(_unwrapped, c10d.backends_of(whole)):
        if isinstance(backend, module.ProcessGroup):
            return backend
    return None


def _unwrapped(backend: Any) -> Any:
    """What torch has put a wrapper around because of TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    while hasattr(backend, "wrapped_pg"):
        backend = backend.wrapped_pg
    return backend


def require(group: Any = None) -> Any:
    """As `find`, but raises UserError where there is none."""
    found = find(group)
    if found is None:
        raise UserError(
            'this group has no backend "agspeed": call torch.distributed.init_process_group("agspeed") first and '
            "destroy_process_group() later, or pass a group that was made with it."
        )
    return found


def monitored_barrier(
    group: Any = None, timeout: datetime.timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """torch.distributed.monitored_barrier for groups of ours: a barrier that names the ranks which did not come.

    It goes through the store that the group was made with. A rank that is missing leaves the group usable. Of several
    missing ranks the lowest one is named, or all of them with `wait_all_ranks`. timeout: a timedelta, seconds, or None
    for the group's own. Groups with other backends are handed to torch.

    Raises: DistBackendError at every rank that came, also late, when one did not come in time.
    """
    found = find(group)
    if isinstance(timeout, (int, float)):
        timeout = datetime.timedelta(seconds=timeout)
    if timeout is not None and timeout <= datetime.timedelta(0):
        raise UserError(f"timeout={timeout} is not valid: a barrier needs some time.")
    if found is None:
        distributed.monitored_barrier(group, timeout, wait_all_ranks)
    else:
        found.monitored_barrier(timeout, wait_all_ranks)
