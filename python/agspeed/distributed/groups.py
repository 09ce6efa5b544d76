# SPDX-License-Identifier: Apache-2.0
"""Finds our process groups behind torch's, and offers them a monitored barrier, which torch has for Gloo only."""

from __future__ import annotations

import datetime
from typing import Any

from torch import distributed

from agspeed import native
from agspeed.errors import UserError
from agspeed.torch_compat import c10d

__all__ = ["backend_of", "find", "membership_changes", "monitored_barrier", "require", "world_size"]

membership_changes = False
"""Whether processes may join and leave the default group's job. `agspeed.elastic` sets it."""


def world_size() -> int:
    """The number of ranks of this job, with any backend; 1 if torch.distributed is not in use."""
    is_used = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if is_used else 1


def backend_of(group: Any) -> str:
    """The backend of one of torch's groups: "agspeed" if it is ours, even if the group has another backend's name."""
    return "agspeed" if find(group) is not None else distributed.get_backend(group)


def find(group: Any = None) -> Any | None:
    """Our backend within one of torch's groups (None: the default group), or None if all its backends are others."""
    module = native.load()
    if module is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    whole: Any = group if group is not None else distributed.group.WORLD
    for backend in map(_unwrapped, c10d.backends_of(whole)):
        if isinstance(backend, module.ProcessGroup):
            return backend
    return None


def _unwrapped(backend: Any) -> Any:
    """The backend without the wrappers that torch adds under TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    while hasattr(backend, "wrapped_pg"):
        backend = backend.wrapped_pg
    return backend


def require(group: Any = None) -> Any:
    """Like `find`, but raises UserError if there is none."""
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
    """torch.distributed.monitored_barrier for our groups: a barrier that names the ranks that did not arrive.

    The barrier uses the store that the group was created with. The group stays usable after a rank was missing. If
    several ranks are missing, the error names the lowest one, or all of them with `wait_all_ranks`. timeout: a
    timedelta, a number of seconds, or None for the group's own timeout. For groups with other backends, torch's own
    function runs.

    Raises: DistBackendError at every rank that arrives, even late, if one rank did not arrive in time. UserError for a
    timeout that is not above 0.
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
