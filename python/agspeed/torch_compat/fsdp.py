# SPDX-License-Identifier: Apache-2.0
"""`fully_shard` (FSDP2): its records about a unit's parameters.

Only ranks use it. Without this part, a module with units runs eagerly. All needs exist since torch 2.11. Threads: the
training thread.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from agspeed.torch_compat.part import Part

_HOME = "torch.distributed.fsdp._fully_shard"
PART = Part(
    "fsdp",
    __name__,
    needs=(
        "torch.distributed.fsdp.FSDPModule._get_fsdp_state",
        f"{_HOME}._fsdp_param.FSDPParam.is_dtensor",
        f"{_HOME}._fsdp_param.FSDPParam.offload_to_cpu",
        f"{_HOME}._fsdp_param.FSDPParam.sharded_param",
        f"{_HOME}._fsdp_param_group.FSDPParamGroup.fsdp_params",
        f"{_HOME}._fsdp_param_group.FSDPParamGroup.reduce_grads",
        f"{_HOME}._fsdp_param_group.FSDPParamGroup.unshard_in_backward",
        f"{_HOME}._fsdp_state.FSDPState._device",
        f"{_HOME}._fsdp_state.FSDPState._fsdp_param_group",
    ),
    lost="nothing is tuned under fully_shard, models train eagerly there",
)


def unit_class() -> Any:
    """The class that `fully_shard` gives to modules; None while `fully_shard` is not loaded."""
    return getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)


def states_of(units: Iterable[Any]) -> list[Any]:
    """FSDP's states of units, each once. Units that were passed to `fully_shard` as one list share a state."""
    states = [unit._get_fsdp_state() for unit in units]
    return list({id(state): state for state in states}.values())


def device_of(state: Any) -> Any:
    """The device on which a unit computes."""
    return state._device


def groups_of(units: Iterable[Any]) -> list[Any]:
    """FSDP's parameter groups of units. Units without parameters have none."""
    return [state._fsdp_param_group for state in states_of(units) if state._fsdp_param_group is not None]
