# SPDX-License-Identifier: Apache-2.0
"""The *units* of a module: the modules that `fully_shard` (FSDP2) was called for.

A unit's parameters are whole while its forward or its backward runs. FSDP's hooks gather them before and free them
afterwards, outside of the unit's own forward. That forward therefore works on plain tensors and can be compiled. Ranks
gather in every backward, so all of them reach the same backwards.
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
    """Presents the units of a module as the wrapper around it, for the meetings of ranks (`meetings.py`)."""

    _join_config: ClassVar[Any] = SimpleNamespace(enable=False)

    def __init__(self, module: nn.Module, units: Mapping[str, nn.Module], process_group: Any) -> None:
        self.process_group = process_group
        self._module, self._units = module, units

    @classmethod
    def of(cls, module: nn.Module, units: Mapping[str, nn.Module]) -> Sharding | None:
        """Returns None unless all parameters are sharded over the same ranks in one mesh dimension."""
        meshes = [parameter.device_mesh for parameter in sharded_parameters(units)]  # type: ignore[attr-defined]
        if not meshes or meshes[0].ndim != 1 or any(mesh != meshes[0] for mesh in meshes):
            return None
        return cls(module, units, meshes[0].get_group())

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether the next backward reduces gradients."""
        return all(group.reduce_grads for group in fsdp.groups_of(self._units.values()))

    def parameters(self) -> Iterator[nn.Parameter]:
        return self._module.parameters()


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
