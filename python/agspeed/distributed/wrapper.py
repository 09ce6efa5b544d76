# SPDX-License-Identifier: Apache-2.0
"""The data-parallel wrapper around a module: the object that reduces its gradients while a backward runs.

`optimize` patches the module inside a wrapper, so both orders of wrapping give the same result. The wrapper is the
DistributedDataParallel that calls the module, or the one that `replicate()` has attached to it. Under a wrapper,
compiled backwards return gradients in stages, several for each bucket. A bucket is then in flight soon after its last
gradient was computed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from agspeed.distributed.groups import backend_of
from agspeed.distributed.sharded import Sharding
from agspeed.log import logger
from agspeed.torch_compat import ddp

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

_STAGES_PER_BUCKET = 4
"""Buckets follow the order of gradients in eager's backward, stages the order in the compiled backward. With fine
stages, a bucket does not wait for a large stage of which it needs one gradient only."""


@dataclass(frozen=True)
class Wrapper:
    """The properties of a wrapper, as found in the first training call."""

    kind: str
    """ "DistributedDataParallel", "replicate" or "fully_shard"."""
    backend: str
    num_ranks: int
    num_hosts: int | None
    """None if the launcher does not say how many ranks share a host."""
    bucket_bytes: int
    """The size of the smallest bucket that it makes; 0 if it makes no buckets."""

    @property
    def stage_bytes(self) -> int:
        """The least bytes of gradients in one stage; 0: no stages."""
        return max(self.bucket_bytes // _STAGES_PER_BUCKET, 1) if self.bucket_bytes else 0


def wrapper_of(module: nn.Module | None) -> Wrapper | None:
    """The wrapper of a module that is being called, or None. module: None for anything else, e.g. a step function."""
    kind, wrapper, _ = _found(module)
    if wrapper is None:
        return None
    group: Any = wrapper.process_group
    num_ranks = torch.distributed.get_world_size(group)
    return Wrapper(kind, backend_of(group), num_ranks, _num_hosts(num_ranks), _bucket_bytes(wrapper))


def sharded_by(sharding: Sharding) -> Wrapper:
    """Describes the units of a module as its wrapper."""
    group = sharding.process_group
    num_ranks = torch.distributed.get_world_size(group)
    return Wrapper("fully_shard", backend_of(group), num_ranks, _num_hosts(num_ranks), 0)


def is_awaited(module: nn.Module | None) -> bool:
    """Whether `replicate()` was applied to a module but has not made its wrapper, which it does in the first call."""
    try:
        return module is not None and ddp.is_replicated(module) and ddp.wrapper_by_replicate(module) is None
    except Exception:  # private parts of torch may change or be missing
        return False


def ddp_around(module: nn.Module | None) -> tuple[DistributedDataParallel, nn.Module] | None:
    """The wrapper of a module that is being called, and the module whose calls are the wrapper's forwards.

    None if there is no wrapper, or if `replicate()` was applied to a module around this one.
    """
    _, wrapper, called = _found(module)
    return (wrapper, called) if wrapper is not None and called is not None else None


def _found(module: nn.Module | None) -> tuple[str, DistributedDataParallel | None, nn.Module | None]:
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return "", None, None
    try:
        replicated = _replicated(module) if module is not None else None
    except Exception:  # private parts of torch may change
        logger.debug("replicate() cannot be looked for", exc_info=True)
        replicated = None
    if replicated is not None:
        return "replicate", replicated, module
    active = ddp.active()
    if active is not None and isinstance(active.module, nn.ParameterList):
        return "replicate", active, None
    return "DistributedDataParallel", active, active


def _replicated(module: nn.Module) -> DistributedDataParallel | None:
    return ddp.wrapper_by_replicate(module) if ddp.is_replicated(module) else None


def _num_hosts(num_ranks: int) -> int | None:
    per_host = os.environ.get("LOCAL_WORLD_SIZE", "")
    return -(-num_ranks // int(per_host)) if per_host.isdigit() and int(per_host) > 0 else None


def _bucket_bytes(wrapper: DistributedDataParallel) -> int:
    return ddp.first_bucket_bytes() if wrapper.bucket_bytes_cap_default else int(wrapper.bucket_bytes_cap)
