# SPDX-License-Identifier: Apache-2.0
"""What a region's graph does besides returning values: it may draw random numbers and change inputs in place.

Observed once, on an eager run: a captured graph has no branches, so every run has the same effects. Known effects let
a run that failed half-way be repeated eagerly as if it had never begun, or be refused where that is impossible.
Regions without effects pay nothing. A changed input is noticed by its version counter: compiled graphs apply their
changes last, by counted copies. Values are immutable; used on whichever thread runs the region.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from agspeed.devices.random_state import RandomState, devices_of
from agspeed.torch_compat.modules import version_of


@dataclass(frozen=True)
class Before:
    """The state just before a run."""

    random_state: torch.Tensor | RandomState | None
    versions: tuple[int, ...]


@dataclass(frozen=True)
class Effects:
    """See the module's text."""

    draws_random_numbers: bool = False
    mutated_inputs: tuple[int, ...] = ()
    devices: tuple[torch.device, ...] = ()
    """Others than the CPU whose generators may be drawn from."""

    @property
    def any(self) -> bool:
        return self.draws_random_numbers or bool(self.mutated_inputs)

    def before(self, args: Sequence[Any]) -> Before:
        """To be taken before a run with `args`. Costs microseconds where numbers are drawn, else next to nothing."""
        state = _random_state(self.devices) if self.draws_random_numbers else None
        return Before(state, tuple(version_of(args[index]) for index in self.mutated_inputs))

    def rewind(self, before: Before) -> None:
        """The random stream is where it was."""
        if isinstance(before.random_state, RandomState):
            before.random_state.restore()
        elif before.random_state is not None:
            torch.set_rng_state(before.random_state)

    def first_changed_input(self, before: Before, args: Sequence[Any]) -> int | None:
        """An input that has been changed since, or None."""
        pairs = zip(self.mutated_inputs, before.versions, strict=True)
        return next((index for index, version in pairs if version_of(args[index]) != version), None)


def observe(
    run: Callable[..., Sequence[Any]], args: Sequence[Any], copies: Sequence[Any] | None
) -> tuple[Sequence[Any], Effects]:
    """Runs the graph eagerly on `args`, of which `copies` were made just before. Returns its outputs and effects.

    Copies are needed because some operators, batch norm among them, change an input without counting a version.
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
