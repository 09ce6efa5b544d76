# SPDX-License-Identifier: Apache-2.0
"""The values that a sparse codec keeps for each parameter between steps: residuals and velocities.

The parameters of a bucket share flat tensors (`Slot`). Buckets may change during training and between processes, so
saved states are by parameter, and a slot for a new bucket takes over the values of its parameters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from agspeed.distributed.codecs.codec import Bucket
from agspeed.errors import UserError

__all__ = ["Memory", "Moved", "Slot"]


class Moved(NamedTuple):
    """The next content of a slot. It counts once `Slot.commit` stores it."""

    total: torch.Tensor
    """The values to send: the residual, plus the gradient, or plus the new velocity if there is momentum."""
    velocity: torch.Tensor | None


class Slot:
    """The memory of one bucket."""

    def __init__(self, steps: int, residual: torch.Tensor | None, velocity: torch.Tensor | None) -> None:
        self.steps = steps
        """How many steps the bucket has seen."""
        self.residual = residual
        """Values that were not sent so far; None: all zeros."""
        self.velocity = velocity
        """The sum of past gradients, weighted by the momentum; None: all zeros."""
        self._spare: list[torch.Tensor | None] = [None, None]

    def __getstate__(self) -> dict[str, Any]:
        return {"steps": self.steps, "residual": self.residual, "velocity": self.velocity, "_spare": [None, None]}

    def moved(self, gradient: torch.Tensor, momentum: float) -> Moved:
        """Adds a gradient, and leaves the slot as it is. A result is valid until the next call, unless it was
        committed."""
        velocity = gradient
        if momentum:
            velocity = self._spare[0] = _empty(self._spare[0], gradient)
            _sum(gradient, self.velocity, momentum, velocity)
        total = self._spare[1] = _empty(self._spare[1], gradient)
        _sum(velocity, self.residual, 1.0, total)
        return Moved(total, velocity if momentum else None)

    def commit(self, moved: Moved, pattern: torch.Tensor | None) -> None:
        """Stores a step whose values at the places of `pattern` were sent; None: all of them were sent."""
        self._spare = [self.velocity, self.residual]
        self.velocity = moved.velocity
        if pattern is None:
            self._spare[1], self.residual = moved.total, None
            return
        self.residual = moved.total
        # Gradients that were sent late must not be accelerated once more (momentum factor masking).
        for kept in (self.residual, self.velocity):
            if kept is not None:
                kept[pattern] = 0


def _empty(spare: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    return spare if spare is not None else torch.empty_like(like)


def _sum(values: torch.Tensor, kept: torch.Tensor | None, factor: float, out: torch.Tensor) -> None:
    if kept is None:
        out.copy_(values)
    else:
        torch.add(values, kept, alpha=factor, out=out)


class _Part(NamedTuple):
    """The memory of one parameter that is in no slot now."""

    steps: int
    residual: torch.Tensor | None
    velocity: torch.Tensor | None


class Memory:
    """The slots of all buckets of a codec. Can be pickled."""

    def __init__(self) -> None:
        self._slots: dict[tuple[str, ...], tuple[tuple[int, ...], Slot]] = {}
        self._parts: dict[str, _Part] = {}

    def slot(self, bucket: Bucket) -> Slot:
        """Returns the bucket's slot. Raises: UserError if a loaded state has another size for one of its parameters."""
        if (found := self._slots.get(bucket.names)) is not None:
            return found[1]
        wanted = set(bucket.names)
        for names in [names for names in self._slots if not wanted.isdisjoint(names)]:
            self._parts.update(_divided(names, *self._slots.pop(names)))
        slot = self._joined(bucket)
        self._slots[bucket.names] = (bucket.sizes, slot)
        return slot

    def _joined(self, bucket: Bucket) -> Slot:
        parts = [self._parts.get(name, _Part(0, None, None)) for name in bucket.names]
        for name, size, part in zip(bucket.names, bucket.sizes, parts, strict=True):
            for kept in (part.residual, part.velocity):
                if kept is not None and kept.numel() != size:
                    raise UserError(
                        f"the state of the codec has {kept.numel()} values for {name}, and the parameter has {size}: "
                        "load the state that belongs to this model."
                    )
        for name in bucket.names:
            self._parts.pop(name, None)
        residual, velocity = (
            _concatenated(bucket, [getattr(part, field) for part in parts]) for field in ("residual", "velocity")
        )
        return Slot(max(part.steps for part in parts), residual, velocity)

    def state_dict(self) -> dict[str, Any]:
        """Returns {"steps", "residuals", "velocities"}, each by parameter's name. Tensors are copies."""
        parts = dict(self._parts)
        for names, (sizes, slot) in self._slots.items():
            parts.update(_divided(names, sizes, slot))
        return {
            "steps": {name: part.steps for name, part in parts.items()},
            "residuals": {name: part.residual.clone() for name, part in parts.items() if part.residual is not None},
            "velocities": {name: part.velocity.clone() for name, part in parts.items() if part.velocity is not None},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Forgets everything, and continues with a result of `state_dict`. Raises: UserError for anything else."""
        try:
            residuals, velocities = state["residuals"], state["velocities"]
            parts = {
                name: _Part(
                    int(steps),
                    residuals[name].clone() if name in residuals else None,
                    velocities[name].clone() if name in velocities else None,
                )
                for name, steps in state["steps"].items()
            }
        except (AttributeError, KeyError, TypeError):
            raise UserError(
                "this is no state of a sparse codec, which has dicts of steps, residuals and velocities by the "
                "parameters' names: load what state_dict() returned."
            ) from None
        self._slots, self._parts = {}, parts


def _divided(names: tuple[str, ...], sizes: tuple[int, ...], slot: Slot) -> dict[str, _Part]:
    """Returns the memory of each parameter of a slot, as views."""

    def divided(kept: torch.Tensor | None) -> list[torch.Tensor | None]:
        return [None] * len(names) if kept is None else list(kept.split(list(sizes)))

    parts = zip(divided(slot.residual), divided(slot.velocity), strict=True)
    return {name: _Part(slot.steps, *part) for name, part in zip(names, parts, strict=True)}


def _concatenated(bucket: Bucket, parts: list[torch.Tensor | None]) -> torch.Tensor | None:
    if all(part is None for part in parts):
        return None
    values, dtype = bucket.values, next(part.dtype for part in parts if part is not None)
    return torch.cat(
        [
            torch.zeros(size, dtype=dtype, device=values.device) if part is None else part.to(values.device)
            for size, part in zip(bucket.sizes, parts, strict=True)
        ]
    )
