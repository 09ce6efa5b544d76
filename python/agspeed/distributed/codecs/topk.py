# SPDX-License-Identifier: Apache-2.0
"""Sends only the largest values of a bucket, and keeps the others for later steps (error feedback).

Let g be this rank's gradient, v its residual and n the number of ranks:

1. Each rank adds g to v, and finds the k / n places where v is largest. The ranks gather these places. Their union, at
   most k places, is the pattern of this step at all ranks.
2. An all-reduce averages the values of v at the pattern. All other places of the result are zero.
3. Each rank sets v to zero at the pattern. So the sent values and the new v add up to the old v plus g.

With momentum m (momentum correction of Deep Gradient Compression, https://arxiv.org/abs/1712.01887), a velocity
u = m * u + g takes the place of g in step 1, and u is set to zero at the pattern, too. Then the optimizer itself must
have no momentum.

A warm-up of w steps sends the part d^(t/w) of the values in step t, where d is the density. Where a rank has NaN or
infinity, all ranks send their gradients densely, and u and v stay as they were.
"""

from __future__ import annotations

import torch

from agspeed.distributed.codecs import kernels
from agspeed.distributed.codecs.codec import Bucket, Codec, Steps, Wire, average_densely
from agspeed.distributed.codecs.memory import Memory, Moved, Slot
from agspeed.errors import UserError

__all__ = ["TopK"]

_MOST = 0.5
"""The largest density at which a pattern is sent. Places take a third of the bytes, so beyond it little is saved."""


class TopK(Codec):
    """Sends the part `density` of the values. See the module's docstring.

    momentum: of the momentum correction; 0: none. warmup_steps: steps until the density is reached. dense_below:
    buckets with fewer values are sent densely. Raises: UserError for options out of range.
    """

    name = "topk"

    def __init__(
        self, density: float = 0.01, momentum: float = 0.0, warmup_steps: int = 0, dense_below: int = 4096
    ) -> None:
        if not 0 < density <= 1:
            raise UserError(f"density={density} is not the part of the values to send: write a number in (0, 1].")
        if not 0 <= momentum < 1:
            raise UserError(f"momentum={momentum} is not valid: write a number in [0, 1).")
        if warmup_steps < 0:
            raise UserError(f"warmup_steps={warmup_steps} is not valid: write 0 or a number of steps.")
        self.density, self.momentum, self.warmup_steps = density, momentum, warmup_steps
        self.dense_below = dense_below
        self._memory = Memory()

    def describe(self) -> str:
        options = ("density", "momentum", "warmup_steps", "dense_below")
        return f"{self.name}({', '.join(f'{option}={getattr(self, option)}' for option in options)})"

    def state_dict(self) -> dict[str, object]:
        return self._memory.state_dict()

    def load_state_dict(self, state: dict[str, object]) -> None:
        self._memory.load_state_dict(state)

    def steps(self, bucket: Bucket, wire: Wire) -> Steps:
        values = bucket.values
        if not values.is_floating_point():
            yield from average_densely(values, wire)
            return
        slot = self._memory.slot(bucket)
        count = self._count(values, slot.steps)
        slot.steps += 1
        gradient = values if values.dtype in (torch.float32, torch.float64) else values.float()
        if count is None:
            yield from self._send_all(bucket, gradient, slot, wire)
        else:
            yield from self._send_largest(bucket, gradient, slot, count, wire)

    def density_at(self, step: int) -> float:
        """Returns the part of the values that is sent in a step, counted from 0."""
        return self.density if step >= self.warmup_steps else self.density ** (step / self.warmup_steps)

    def _count(self, values: torch.Tensor, step: int) -> int | None:
        """Returns how many values to send; None: all of them."""
        density, count = self.density_at(step), values.numel()
        if count < self.dense_below or density > _MOST or values.dtype == torch.float64:
            return None
        return max(int(density * count), 1)

    def _send_all(self, bucket: Bucket, gradient: torch.Tensor, slot: Slot, wire: Wire) -> Steps:
        if not self.momentum and slot.residual is None:
            yield from average_densely(bucket.values, wire)
            return
        moved = slot.moved(gradient, self.momentum)
        average = yield wire.all_reduce(moved.total / wire.size)
        # The average has the same bits at all ranks, so they agree on whether it is finite.
        if torch.isfinite(average).all():
            slot.commit(moved, None)
        else:
            self._refuse(bucket)
        bucket.values.copy_(average)

    def _send_largest(self, bucket: Bucket, gradient: torch.Tensor, slot: Slot, count: int, wire: Wire) -> Steps:
        moved = slot.moved(gradient, self.momentum)
        gathered = yield wire.all_gather(_proposed(moved, -(-count // wire.size)))
        if gathered[:, -1].any():
            self._refuse(bucket)
            yield from average_densely(bucket.values, wire)
            return
        pattern = torch.unique(gathered[:, :-1]).long()
        average = yield wire.all_reduce(moved.total[pattern] / wire.size)
        slot.commit(moved, pattern)
        bucket.values.zero_()
        bucket.values[pattern] = average.to(bucket.values.dtype)


def _proposed(moved: Moved, count: int) -> torch.Tensor:
    """Returns the places of the largest values, and a last number that is 1 if a value is not finite."""
    places = torch.zeros(count + 1, dtype=torch.int32, device=moved.total.device)
    if not kernels.select_largest(places[:-1], moved.total):
        places.fill_(0)
        places[-1] = 1
    return places
