# SPDX-License-Identifier: Apache-2.0
"""What `fully_shard` (FSDP2) makes of a module: *units*, the modules that it was called for.

A unit's parameters are whole while its forward runs, and while its backward does; its hooks gather them before and free
them afterwards, outside of the unit's own forward. What a unit's forward does with plain tensors can be compiled, then.
As ranks gather in every backward, all of them reach the same ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import nn

from agspeed.devices.placement import is_sharded


class Sharding:
    """The units of a module as the wrapper around it, for the meetings of ranks (`meetings.py`)."""

    _join_config: ClassVar[Any] = SimpleNamespace(enable=False)

    def __init__(self, module: nn.Module, units: Mapping[str, nn.Module], process_group: Any) -> None:
        self.process_group = process_group
        self._module, self._units = module, units

    @classmethod
    def of(cls, module: nn.Module, units: Mapping[str, nn.Module]) -> Sharding | None:
        """None unless the same ranks, in one dimension, have the parts of all parameters."""
        meshes = [parameter.device_mesh for parameter in module.parameters() if is_sharded(parameter)]  # type: ignore[attr-defined]
        if not meshes or meshes[0].ndim != 1 or any(mesh != meshes[0] for mesh in meshes):
            return None
        return cls(module, units, meshes[0].get_group())

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether gradients are reduced in the next backward."""
        states: list[Any] = [unit._get_fsdp_state() for unit in self._units.values()]  # type: ignore[operator]
        groups = [state._fsdp_param_group for state in states if state._fsdp_param_group is not None]
        return all(group.reduce_grads for group in groups)

    def parameters(self) -> Iterator[nn.Parameter]:
        return self._module.parameters()


def units_of(module: nn.Module) -> dict[str, nn.Module]:
    """By name ("" is `module` itself), the units in a module on the CPU. {} where parameters are sharded by other means
    as well.
    """
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if kind is None:  # nobody has loaded it
        return {}
    units = {name: part for name, part in module.named_modules() if isinstance(part, kind)}
    theirs = {id(parameter) for unit in units.values() for parameter in unit.parameters()}
    sharded = [parameter for parameter in module.parameters() if is_sharded(parameter)]
    is_clear = all(id(parameter) in theirs and parameter.device.type == "cpu" for parameter in sharded)
    return units if is_clear else {}


def calls_others(unit: nn.Module, units: Mapping[str, nn.Module]) -> bool:
    """Whether another one of `units` is a part of `unit`."""
    others = {id(other) for other in units.values() if other is not unit}
    return any(id(part) in others for part in unit.modules())


def local_parts(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Of sharded tensors the part that is here, the others as they are."""
    for tensor in tensors:
        yield tensor.detach().to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
