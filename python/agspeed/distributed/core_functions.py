# SPDX-License-Identifier: Apache-2.0
"""Functions of torch.distributed's core that serve torch's own backends only, made to serve groups of ours, too.

`_set_pg_timeout` reaches Gloo and NCCL alone before torch 2.14. The coalescing manager leaves its scope open where
something is raised in it: later collectives of the group are collected and never run. Groups with other backends get
what torch does. Importing this loads neither the settings nor the extension: it runs where torch is imported.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from agspeed.torch_compat import c10d

__all__ = ["install"]


def install() -> None:
    """Puts both in place, for the whole process. To be called once."""
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
    """The group (the default one for None) where a backend of it is ours, else None."""
    from torch import distributed

    from agspeed.distributed import groups

    return None if groups.find(group) is None else group or distributed.group.WORLD
