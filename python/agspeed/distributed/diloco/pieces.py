# SPDX-License-Identifier: Apache-2.0
"""The outer parameters, which are equal at all ranks, and the outer optimizer that moves them.

A piece holds flat tensors for parameters of one type on one device. With d the average over the ranks of "outer minus
local parameters", v the velocity, m the momentum and r the learning rate, SGD with Nesterov's momentum is

    v = m * v + d          outer = outer - r * (d + m * v)

Each operation on tensors below is rounded once, so ranks with other processors compute the same bits.

With bytes, a rank sends "outer minus local" plus its residual. The new residual is the part that the bytes have lost.

Threading: the training thread. Ownership: a piece owns its tensors; the parameters belong to the model.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from agspeed.distributed.codecs.codec import Steps, Wire, average_densely
from agspeed.distributed.codecs.int8 import average_as_bytes

__all__ = ["Piece", "fragments_of"]

_DENSE_BELOW = 4096
"""Pieces with fewer values are sent as they are."""


class Piece:
    """Some parameters, with their outer values. `is_coded`: float32 is sent as bytes.

    Attributes:
        names: of the parameters.
        outer, velocity, residual: flat tensors; `residual` is None unless the piece is sent as bytes. Half-precision
            parameters have float32 here.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor], *, is_coded: bool) -> None:
        self.names, self._parameters = tuple(parameters), list(parameters.values())
        self._dtype = self._parameters[0].dtype
        self.outer = self._local()
        self.velocity = torch.zeros_like(self.outer)
        is_coded = is_coded and self.outer.dtype == torch.float32 and self.outer.numel() >= _DENSE_BELOW
        self.residual = torch.zeros_like(self.outer) if is_coded else None
        self._averaged: tuple[torch.Tensor, torch.Tensor | None] | None = None

    def exchange(self, wire: Wire) -> Steps:
        """Averages how far the ranks have moved their parameters. The result waits for `apply`."""
        self._averaged = None
        outer = self.outer.to(self._dtype).to(self.outer.dtype)  # as the local parameters began
        moved = outer - self._local()
        if self.residual is None:
            yield from average_densely(moved, wire)
            if torch.isfinite(moved).all():
                self._averaged = (moved, None)
            return
        lost = torch.empty_like(moved)
        if (yield from average_as_bytes(moved.add_(self.residual), wire, lost)):
            self._averaged = (moved, lost)

    @property
    def is_exchanged(self) -> bool:
        """Whether the exchange has succeeded, equally at all ranks. It fails if a rank has NaN or infinity."""
        return self._averaged is not None

    def apply(self, rate: float, momentum: float) -> None:
        """Takes the outer step, and continues from the outer parameters. Requires: `is_exchanged`."""
        assert self._averaged is not None
        (moved, self.residual), self._averaged = self._averaged, None
        self.velocity.mul_(momentum).add_(moved)
        self.outer.sub_(torch.mul(self.velocity, momentum).add_(moved).mul_(rate))
        self.put()

    def put(self) -> None:
        """Sets this rank's parameters to the outer ones."""
        for parameter, part in zip(self._parameters, self._divided(self.outer), strict=True):
            parameter.copy_(part)

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Returns copies of the tensors by parameter: {name: {"outer", "velocity", and "residual" if there is one}}."""
        fields = {"outer": self.outer, "velocity": self.velocity, "residual": self.residual}
        divided = {field: self._divided(kept) for field, kept in fields.items() if kept is not None}
        return {
            name: {field: parts[at].clone() for field, parts in divided.items()} for at, name in enumerate(self.names)
        }

    def load(self, state: Mapping[str, Mapping[str, torch.Tensor]], *, has_residuals: bool) -> None:
        """Takes over the results of `state`, except for the residuals of another rank (`has_residuals`). The parameters
        stay as they are."""
        for field, kept in (("outer", self.outer), ("velocity", self.velocity), ("residual", self.residual)):
            if kept is None:
                continue
            kept.zero_()
            if field == "residual" and not has_residuals:
                continue
            for name, part in zip(self.names, self._divided(kept), strict=True):
                if field in state[name]:
                    part.copy_(state[name][field])

    def _local(self) -> torch.Tensor:
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters])
        return flat if flat.dtype == torch.float64 else flat.float()

    def _divided(self, flat: torch.Tensor) -> list[torch.Tensor]:
        parts = flat.split([parameter.numel() for parameter in self._parameters])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self._parameters, strict=True)]


def fragments_of(parameters: Mapping[str, torch.Tensor], num_fragments: int) -> list[list[dict[str, torch.Tensor]]]:
    """Divides parameters into fragments of about equal size, in their order, and each fragment by device and type.
    There are fewer fragments if parameters are larger than one."""
    total, before = max(sum(each.numel() for each in parameters.values()), 1), 0
    fragments: dict[int, dict[tuple[torch.device, torch.dtype], dict[str, torch.Tensor]]] = {}
    for name, parameter in parameters.items():
        at = int(num_fragments * (before + parameter.numel() / 2) / total)
        before += parameter.numel()
        fragments.setdefault(at, {}).setdefault((parameter.device, parameter.dtype), {})[name] = parameter
    return [list(fragment.values()) for fragment in fragments.values()]
