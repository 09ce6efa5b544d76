# SPDX-License-Identifier: Apache-2.0
"""Stragglers: which rank of a data-parallel job holds the others up, and why (see README.md).

Threads: the training thread, except for `verdict_of`, which any thread may call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from agspeed.log import logger

if TYPE_CHECKING:
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from agspeed.config import Settings
    from agspeed.distributed.rank_group import RankGroup
    from agspeed.distributed.stragglers.watch import Verdict, Watch

__all__ = ["verdict_of", "watch_ranks"]

_watches: weakref.WeakKeyDictionary[DistributedDataParallel, Watch] = weakref.WeakKeyDictionary()
_by_module: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Watch]] = weakref.WeakKeyDictionary()


def watch_ranks(
    group: RankGroup,
    wrapper: DistributedDataParallel,
    module: nn.Module,
    settings: Settings,
    is_tuning: Callable[[], bool],
) -> None:
    """Compares the ranks around a wrapper from now on until `module` is restored, if the settings ask for it.

    All ranks must call this in the same training forward. Args: see `Watch`.
    """
    if settings.compare_ranks_s == 0 or group.uses_device or wrapper in _watches:
        return
    try:
        from agspeed.distributed import metrics
        from agspeed.distributed.stragglers.watch import Watch

        metrics.also_in_prometheus(_prometheus)
        watch = _watches[wrapper] = Watch(group, wrapper, module, is_tuning)
        _by_module[module] = weakref.ref(watch)
        watch.start(settings.compare_ranks_s)
    except Exception as error:  # private parts of torch may change
        logger.info("the ranks around %s are not compared: %s", type(module).__name__, error)


def _prometheus() -> Iterator[str]:
    from agspeed.distributed.stragglers.watch import prometheus_lines

    return prometheus_lines(watch.verdict for watch in list(_watches.values()))


def verdict_of(module: nn.Module | None) -> Verdict | None:
    """Returns what is known about the ranks that train an optimized module; None if they are not compared."""
    reference = _by_module.get(module) if module is not None else None
    watch = reference() if reference is not None else None
    return watch.verdict if watch is not None else None
