# SPDX-License-Identifier: Apache-2.0
"""Extends functions of torch.distributed's core, which serve only torch's own backends, to our groups.

Before torch 2.14, `_set_pg_timeout` reaches only Gloo and NCCL. The coalescing manager leaves its scope open if an
exception is raised inside it: it then collects later collectives of the group and never runs them. Groups with other
backends keep torch's behaviour. Importing this module loads neither the settings nor the native extension, because
`import torch` runs it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from agspeed.torch_compat import c10d

__all__ = ["install"]


def install() -> None:
    """Replaces both functions for the whole process. Call it once."""
    c10d.wrap_timeout_setter(_reaching_ours)
    c10d.wrap_coalescing(_ending_where_something_is_raised)


def _reaching_ours(set_timeout: Any) -> Any:
    @functools.wraps(set_timeout)
    def set_pg_timeout(timeout: Any, group: Any = None) -> None:
        whole = _ours(group)
        if whole is None:
            set_timeout(timeout, group)
        else:
            whole.set_timeout(timeout)

    return set_pg_timeout


def _ending_where_something_is_raised(manage: Any) -> Any:
    @contextlib.contextmanager
    @functools.wraps(manage)
    def coalescing_manager(group: Any = None, device: Any = None, async_ops: bool = False) -> Iterator[Any]:
        with manage(group, device, async_ops) as works:
            try:
                yield works
            except BaseException:
                if _ours(group) is not None:
                    c10d.end_coalescing(group, device)
                raise

    return coalescing_manager


def _ours(group: Any) -> Any | None:
    """Returns the group (the default group for None) if one of its backends is ours, else None."""
    from torch import distributed

    from agspeed.distributed import groups

    return None if groups.find(group) is None else group or distributed.group.WORLD
