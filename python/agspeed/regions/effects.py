# SPDX-License-Identifier: Apache-2.0
"""Records the side effects of a region's graph: random numbers that it draws and inputs that it changes in place.

The effects are observed once, in an eager run: a captured graph has no branches, so every run has the same effects.
They allow a run that failed half-way to be repeated eagerly as if it had never begun, or show that this is impossible.
Regions without effects pay nothing. The version counter of an input shows a change: compiled graphs write their changes
last, with copies that increment it. Values are immutable and used on the thread that runs the region.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from agspeed.backends.base import Runner
from agspeed.devices.random_state import RandomState, devices_of
from agspeed.torch_compat.modules import version_of


@dataclass(frozen=True)
class Before:
    """The generators' state and the inputs' versions just before a run."""

    random_state: torch.Tensor | RandomState | None
    versions: tuple[int, ...]


@dataclass(frozen=True)
class Effects:
    """The side effects of one graph."""

    draws_random_numbers: bool = False
    mutated_inputs: tuple[int, ...] = ()
    devices: tuple[torch.device, ...] = ()
    """Devices other than the CPU whose generators the graph may use."""

    @property
    def any(self) -> bool:
        return self.draws_random_numbers or bool(self.mutated_inputs)

    def before(self, args: Sequence[Any]) -> Before:
        """Returns the state before a run with `args`. Takes microseconds if the graph draws random numbers."""
        state = _random_state(self.devices) if self.draws_random_numbers else None
        return Before(state, tuple(version_of(args[index]) for index in self.mutated_inputs))

    def rewind(self, before: Before) -> None:
        """Restores the random generators' state."""
        if isinstance(before.random_state, RandomState):
            before.random_state.restore()
        elif before.random_state is not None:
            torch.set_rng_state(before.random_state)

    def first_changed_input(self, before: Before, args: Sequence[Any]) -> int | None:
        """Returns the index of an input that has been changed since `before`, or None."""
        pairs = zip(self.mutated_inputs, before.versions, strict=True)
        return next((index for index, version in pairs if version_of(args[index]) != version), None)


def observe(run: Runner, args: Sequence[Any], copies: Sequence[Any] | None) -> tuple[Sequence[Any], Effects]:
    """Runs the graph eagerly on `args` and returns its outputs and effects. copies: copies of `args` from just before.

    Copies are needed because some operators, such as batch norm, change an input without a new version number.
    """
    devices = devices_of(args)
    state, versions = RandomState(devices), [_version(arg) for arg in args]
    outputs = run(*args)
    kept = copies if copies is not None else args
    mutated = [
        index
        for index, (arg, copy) in enumerate(zip(args, kept, strict=True))
        if _version(arg) != versions[index] or _differs(arg, copy)
    ]
    others = tuple(device for device in devices if device.type != "cpu")
    return outputs, Effects(state != RandomState(devices), tuple(mutated), others)


def _random_state(devices: tuple[torch.device, ...]) -> torch.Tensor | RandomState:
    return RandomState(devices) if devices else torch.get_rng_state()


def _differs(value: Any, copy: Any) -> bool:
    is_plain = isinstance(value, torch.Tensor) and value is not copy and value.layout is torch.strided
    return is_plain and not value.is_inference() and not torch.equal(value, copy)


def _version(value: Any) -> int:
    has_version = isinstance(value, torch.Tensor) and not value.is_inference()
    return version_of(value) if has_version else -1
