# SPDX-License-Identifier: Apache-2.0
"""The data-parallel wrapper around a module: who reduces its gradients while a backward runs.

`optimize` patches the module inside a wrapper, so that either order of wrapping comes to the same: the wrapper is what
calls the module, or what `replicate()` has left on it. Gradients then leave compiled backwards in stages, several to a
bucket, so that a bucket is on its way soon after its last gradient was computed.
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
"""Buckets hold gradients as eager's backward makes them, stages as the compiled one does: finer stages keep a bucket
from waiting for a whole one that it needs one gradient of."""


@dataclass(frozen=True)
class Wrapper:
    """A wrapper as found in the first training call."""

    kind: str
    """ "DistributedDataParallel", "replicate" or "fully_shard"."""
    backend: str
    num_ranks: int
    num_hosts: int | None
    """None where the launcher does not tell how many ranks share a host."""
    bucket_bytes: int
    """Of the smallest bucket that it makes; 0 where it makes none."""

    @property
    def stage_bytes(self) -> int:
        """What the gradients of a stage take at least; 0: no stages."""
        return max(self.bucket_bytes // _STAGES_PER_BUCKET, 1) if self.bucket_bytes else 0


def wrapper_of(module: nn.Module | None) -> Wrapper | None:
    """The wrapper of a module (None: of something else, a step function say) that is being called, or None."""
    kind, wrapper, _ = _found(module)
    if wrapper is None:
        return None
    group: Any = wrapper.process_group
    num_ranks = torch.distributed.get_world_size(group)
    return Wrapper(kind, backend_of(group), num_ranks, _num_hosts(num_ranks), _bucket_bytes(wrapper))


def sharded_by(sharding: Sharding) -> Wrapper:
    """The units of a module as its wrapper."""
    group = sharding.process_group
    num_ranks = torch.distributed.get_world_size(group)
    return Wrapper("fully_shard", backend_of(group), num_ranks, _num_hosts(num_ranks), 0)


def is_awaited(module: nn.Module | None) -> bool:
    """`replicate()` was asked for a module, and does it within the first call, which has yet to come so far."""
    try:
        return module is not None and ddp.is_replicated(module) and ddp.wrapper_by_replicate(module) is None
    except Exception:  # parts of torch that may change, or are not there
        return False


def ddp_around(module: nn.Module | None) -> tuple[DistributedDataParallel, nn.Module] | None:
    """What reduces the gradients of a module that is being called, and the module whose calls are all those that it
    does so for; None where nothing does, or where `replicate()` was asked to for a module around this one.
    """
    _, wrapper, called = _found(module)
    return (wrapper, called) if wrapper is not None and called is not None else None


def _found(module: nn.Module | None) -> tuple[str, DistributedDataParallel | None, nn.Module | None]:
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return "", None, None
    try:
        replicated = _replicated(module) if module is not None else None
    except Exception:  # parts of torch that may change
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
