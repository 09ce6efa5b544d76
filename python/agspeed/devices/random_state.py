# SPDX-License-Identifier: Apache-2.0
"""Saves and restores the states of torch's default random generators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch


class RandomState:
    """The present states of the CPU's generator and of the generators of `devices`."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._cpu = torch.get_rng_state()
        self._others = {device: _module(device).get_rng_state(device) for device in devices if device.type != "cpu"}

    def restore(self) -> None:
        torch.set_rng_state(self._cpu)
        for device, state in self._others.items():
            _module(device).set_rng_state(state, device)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RandomState):
            return NotImplemented
        same = [torch.equal(state, other._others[device]) for device, state in self._others.items()]
        return torch.equal(self._cpu, other._cpu) and all(same)

    __hash__ = None  # type: ignore[assignment]


def devices_of(values: Iterable[Any]) -> list[torch.device]:
    """Returns the devices of the tensors among `values`, each once, in a fixed order."""
    return sorted({value.device for value in values if isinstance(value, torch.Tensor)}, key=str)


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device.type)
