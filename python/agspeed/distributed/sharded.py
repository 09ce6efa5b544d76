# SPDX-License-Identifier: Apache-2.0
"""What `fully_shard` (FSDP2) makes of a module: *units*, the modules that it was called for.

A unit's parameters are whole while its forward runs, and while its backward does; its hooks gather them before and free
them afterwards, outside of the unit's own forward. What a unit's forward does with plain tensors can be compiled, then.
As ranks gather in every backward, all of them reach the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import nn

from agspeed.devices.placement import is_sharded
from agspeed.torch_compat import fsdp


class Sharding:
    """The units of a module as the wrapper around it, for the meetings of ranks (`meetings.py`)."""

    _join_config: ClassVar[Any] = SimpleNamespace(enable=False)

    def __init__(self, module: nn.Module, units: Mapping[str, nn.Module], process_group: Any) -> None:
        self.process_group = process_group
        self._module, self._units = module, units

    @classmethod
    def of(cls, module: nn.Module, units: Mapping[str, nn.Module]) -> Sharding | None:
        """None unless the same ranks, in one dimension, have the parts of all parameters."""
        meshes = [parameter.device_mesh for parameter in sharded_parameters(units)]  # type: ignore[attr-defined]
        if not meshes or meshes[0].ndim != 1 or any(mesh != meshes[0] for mesh in meshes):
            return None
        return cls(module, units, meshes[0].get_group())

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether gradients are reduced in the next backward."""
        return all(group.reduce_grads for group in fsdp.groups_of(self._units.values()))

    def parameters(self) -> Iterator[nn.Parameter]:
        return self._module.parameters()


def units_of(module: nn.Module) -> dict[str, nn.Module]:
    """By name ("" is `module` itself), the units in a module."""
    kind = fsdp.unit_class()
    if kind is None:  # nobody has loaded it
        return {}
    return {name: part for name, part in module.named_modules() if isinstance(part, kind)}


def are_clear(module: nn.Module, units: Mapping[str, nn.Module]) -> bool:
    """Whether the units are on the CPU, to stay there, and nothing else shards parameters of the module.

    FSDP's own account is asked: any parameter may be whole just now.
    """
    theirs = {id(parameter) for unit in units.values() for parameter in unit.parameters()}
    if any(is_sharded(parameter) and id(parameter) not in theirs for parameter in module.parameters()):
        return False
    if any(fsdp.device_of(state).type != "cpu" for state in fsdp.states_of(units.values())):
        return False
    own = [parameter for group in fsdp.groups_of(units.values()) for parameter in group.fsdp_params]
    return not any(parameter.is_dtensor or parameter.offload_to_cpu for parameter in own)


def sharded_parameters(units: Mapping[str, nn.Module]) -> list[nn.Parameter]:
    """Those of units, as they are while none runs."""
    groups = fsdp.groups_of(units.values())
    return [parameter.sharded_param for group in groups for parameter in group.fsdp_params]


def is_gathered_again(unit: nn.Module) -> bool:
    """Whether a unit's parameters are whole in the backward, too; `set_unshard_in_backward` may say otherwise."""
    return all(group.unshard_in_backward for group in fsdp.groups_of([unit]))


def calls_others(unit: nn.Module, units: Mapping[str, nn.Module]) -> bool:
    """Whether another one of `units` is a part of `unit`."""
    others = {id(other) for other in units.values() if other is not unit}
    return any(id(part) in others for part in unit.modules())


def local_parts(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Of sharded tensors the part that is here, the others as they are."""
    for tensor in tensors:
        yield tensor.detach().to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
