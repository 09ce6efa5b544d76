# SPDX-License-Identifier: Apache-2.0
"""The *units* of a module: the modules that `fully_shard` (FSDP2) was called for.

A unit's parameters are whole while its forward or its backward runs. FSDP's hooks gather them before and free them
afterwards, outside of the unit's own forward. That forward therefore works on plain tensors and can be compiled. Ranks
gather in every backward, so all of them reach the same backwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node

from agspeed.devices.placement import is_sharded
from agspeed.distributed.rank_group import RankGroup
from agspeed.distributed.reducers import WrapperLayouts
from agspeed.distributed.step_profile import StepProfile
from agspeed.torch_compat import ddp, fsdp


class Sharding(RankGroup):
    """The ranks around the units of a module."""

    def __init__(self, module: nn.Module, units: Mapping[str, nn.Module], process_group: Any) -> None:
        super().__init__(process_group)
        self._module, self._units = module, units

    @classmethod
    def of(cls, module: nn.Module, units: Mapping[str, nn.Module]) -> Sharding | None:
        """Returns None unless all parameters are sharded over the same ranks in one mesh dimension."""
        sharded: list[Any] = [*sharded_parameters(units)]
        meshes = [parameter.device_mesh for parameter in sharded]
        if not meshes or meshes[0].ndim != 1 or any(mesh != meshes[0] for mesh in meshes):
            return None
        return cls(module, units, meshes[0].get_group())

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def is_alive(self) -> bool:
        return True

    def is_called(self) -> bool:
        return ddp.active() is None

    def will_reduce(self) -> bool:
        """FSDP reads only in the backward whether to reduce."""
        return True

    def reduces(self, gradients: Sequence[Node]) -> bool:
        return all(group.reduce_grads for group in fsdp.groups_of(self._units.values()))

    def gradient_nodes(self) -> list[Node]:
        return []  # ranks communicate in every backward

    def parameters(self) -> Iterator[nn.Parameter]:
        return self._module.parameters()

    def reduced_parameters(self) -> Iterator[torch.Tensor]:
        return self.parameters()

    def option(self, name: str) -> object:
        return None

    def why_layouts_stay(self) -> str | None:
        return None

    def layouts(self) -> WrapperLayouts | None:
        return None

    def latest_step(self) -> StepProfile | None:
        return None


def units_of(module: nn.Module) -> dict[str, nn.Module]:
    """The units in a module, by name; "" is `module` itself."""
    kind = fsdp.unit_class()
    if kind is None:  # FSDP has not been imported
        return {}
    return {name: part for name, part in module.named_modules() if isinstance(part, kind)}


def are_clear(module: nn.Module, units: Mapping[str, nn.Module]) -> bool:
    """Whether the units compute on the CPU without offloading, and nothing else shards parameters of the module.

    This reads FSDP's own records, because any parameter may be gathered at the moment.
    """
    theirs = {id(parameter) for unit in units.values() for parameter in unit.parameters()}
    if any(is_sharded(parameter) and id(parameter) not in theirs for parameter in module.parameters()):
        return False
    if any(fsdp.device_of(state).type != "cpu" for state in fsdp.states_of(units.values())):
        return False
    own = [parameter for group in fsdp.groups_of(units.values()) for parameter in group.fsdp_params]
    return not any(parameter.is_dtensor or parameter.offload_to_cpu for parameter in own)


def sharded_parameters(units: Mapping[str, nn.Module]) -> list[nn.Parameter]:
    """The parameters of units, as they are while no unit runs."""
    groups = fsdp.groups_of(units.values())
    return [parameter.sharded_param for group in groups for parameter in group.fsdp_params]


def is_gathered_again(unit: nn.Module) -> bool:
    """Whether a unit's parameters are gathered for the backward, too. `set_unshard_in_backward` can turn that off."""
    return all(group.unshard_in_backward for group in fsdp.groups_of([unit]))


def calls_others(unit: nn.Module, units: Mapping[str, nn.Module]) -> bool:
    """Whether `unit` contains another one of `units`."""
    others = {id(other) for other in units.values() if other is not unit}
    return any(id(part) in others for part in unit.modules())


def local_parts(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yields this rank's part of each sharded tensor, and other tensors as they are."""
    for tensor in tensors:
        yield tensor.detach().to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
