# SPDX-License-Identifier: Apache-2.0
"""A training step for measuring overlap: layers that sleep instead of computing, real gradients, real DDP.

Runs on the ranks. A layer's backward takes exactly its share of the step, including the time to write the gradient.
DDP's own work with gradients comes on top, as in real training. If a layer sleeps too long, the next one sleeps that
much less.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.comm import programs


class Pace:
    """Sleeps whose sum is exact. `forward` is the forward pass's share; `step_seconds` may change between steps."""

    def __init__(self, forward: float) -> None:
        self.forward, self.backward = forward, 1 - forward
        self.step_seconds = 0.0
        self._late = 0.0

    def sleep(self, share: float, since: float) -> None:
        """Sleeps until that share of a step has passed after `since`."""
        until = since + share * self.step_seconds - self._late
        if (rest := until - time.monotonic()) > 0:
            time.sleep(rest)
            self._late = time.monotonic() - until
        else:
            self._late = min(self._late, -rest)


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: "Sleeper", *weights: Tensor) -> Tensor:
        ctx.layer = layer
        layer.pace.sleep(layer.share * layer.pace.forward, time.monotonic())
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layer, since = ctx.layer, time.monotonic()
        made = [gradient.clone() for gradient in layer.gradients]
        layer.pace.sleep(layer.share * layer.pace.backward, since)
        return gradients[0], None, *made


class Memory:
    """The memory that all layers of a process share. Their weights are views of the same zeros, and their gradients are
    copies of the same pattern, which differs between ranks.
    """

    def __init__(self, num_bytes: int) -> None:
        """`num_bytes` is the size of the largest parameter."""
        self.zeros, self.pattern = torch.zeros(num_bytes // 4), torch.empty(num_bytes // 4)
        programs.fill(self.pattern, programs.pattern(dist.get_rank()))


class Sleeper(nn.Module):
    """A layer whose parameters get this rank's pattern as gradients."""

    def __init__(self, sizes: Sequence[int], share: float, pace: Pace, memory: Memory) -> None:
        """`sizes` are the bytes of its parameters."""
        super().__init__()
        self.share, self.pace = share, pace
        self.weights = nn.ParameterList(memory.zeros[: num_bytes // 4] for num_bytes in sizes)
        self.gradients = [memory.pattern[: num_bytes // 4] for num_bytes in sizes]

    def forward(self, x: Tensor) -> Tensor:
        return _Sleep.apply(x, self, *self.weights)


def sleepers(layers: Sequence[tuple[Sequence[int], float]], pace: Pace, memory: Memory) -> nn.Sequential:
    """Returns the model. `layers` holds bytes of the parameters and share of the compute, in order of the forward
    pass."""
    return nn.Sequential(*(Sleeper(sizes, share, pace, memory) for sizes, share in layers))


def expect_means(model: nn.Module) -> None:
    """Raises AssertionError unless the gradients are the means of all ranks'."""
    mean = programs.total_pattern(dist.get_world_size()) / dist.get_world_size()
    for parameter in model.parameters():
        assert parameter.grad is not None
        programs.expect(parameter.grad, mean)


class Session:
    """A model under DDP. Gradients are views of buckets, which saves a copy of all gradients at the end of a step."""

    def __init__(self, layers: Sequence[tuple[int, float]], bucket_mb: float | None, forward: float) -> None:
        """`layers` holds bytes and share of the compute, in order of the forward pass."""
        self.pace = Pace(forward)
        memory = Memory(max(num_bytes for num_bytes, _ in layers))
        self.model = sleepers([([num_bytes], share) for num_bytes, share in layers], self.pace, memory)
        options: dict[str, Any] = {} if bucket_mb is None else {"bucket_cap_mb": bucket_mb}
        self.wrapped = DistributedDataParallel(self.model, gradient_as_bucket_view=True, **options)
        self.input = torch.zeros(1, requires_grad=True)

    def step(self) -> None:
        self.wrapped.zero_grad(set_to_none=True)
        self.wrapped(self.input).sum().backward()


_session: list[Session] = []


def open_session(layers: Sequence[tuple[int, float]], bucket_mb: float | None, forward: float) -> None:
    """Opens the session that `steps` runs. Two steps without compute let DDP settle its buckets."""
    _session[:] = []
    _session.append(Session(layers, bucket_mb, forward))
    for _ in range(2):
        _session[0].step()


def submissions() -> list[tuple[float, int]]:
    """Returns the time and bytes of DDP's recent all-reduces, on the clock of `programs.timed`. Works with agspeed
    only."""
    from agspeed import distributed

    ahead = time.time() - time.monotonic()
    return [
        (operation["started_at"] - ahead, 4 * sum(operation["input_sizes"]))
        for group in distributed.flight_record()["groups"]
        for operation in group["operations"]
        if operation["operation"] == "all_reduce"
    ]


def steps(compute_seconds: float, count: int) -> dict[str, Any]:
    session = _session[0]
    session.pace.step_seconds = compute_seconds
    noted = programs.timed(count, lambda _: session.step())
    expect_means(session.model)
    return noted
