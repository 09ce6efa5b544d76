# SPDX-License-Identifier: Apache-2.0
"""The numerics gate and CUDA graphs on the device: sound candidates pass, planted bugs are rejected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn

from agspeed.backends import CompileOptions
from agspeed.backends.cudagraph import CudaGraph
from agspeed.tuning.gate.check import Policy, check
from benchmarks.gpu_check.parts import Findings

Region = Callable[..., Sequence[Any]]


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 128), nn.Linear(128, 16)
        self.norm = nn.LayerNorm(128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(nn.functional.dropout(self.norm(self.first(x).relu()), 0.2))


class _WithGradient(torch.autograd.Function):
    """Returns the values of one tensor with the autograd history of another."""

    @staticmethod
    def forward(ctx: Any, history: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return gradient, None


def _captured(model: nn.Module, example: torch.Tensor) -> tuple[fx.GraphModule, list[Any]]:
    found: list[Any] = []

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        found.extend([gm, list(inputs)])
        return gm.forward

    torch._dynamo.reset()
    torch.compile(model, backend=backend)(example)
    return found[0], found[1]


def _graphed(gm: fx.GraphModule) -> Any:
    examples = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
    return CudaGraph().compile(gm, examples, CompileOptions(num_threads=1))


def graphs(seconds: float) -> Findings:
    """Losses and gradients of ten steps equal eager's bit for bit, and still do after the last step."""
    model = _Net().cuda()
    gm, inputs = _captured(model, torch.randn(32, 64, device="cuda"))
    runner = _graphed(gm)
    at = next(i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor) and value.shape == (32, 64))
    parameters = [value for value in inputs if isinstance(value, nn.Parameter)]
    data = [torch.randn(32, 64, device="cuda") for _ in range(10)]

    def train(run: Region) -> list[torch.Tensor]:
        torch.manual_seed(3)
        kept: list[torch.Tensor] = []
        for x in data:
            loss = run(*inputs[:at], x, *inputs[at + 1 :])[0].square().mean()
            kept += [loss.detach(), *torch.autograd.grad(loss, parameters)]
        return kept

    def train_in_pairs(run: Region) -> list[torch.Tensor]:
        torch.manual_seed(4)
        kept: list[torch.Tensor] = []
        for x, y in zip(data[::2], data[1::2], strict=True):
            losses = [run(*inputs[:at], z, *inputs[at + 1 :])[0].square().mean() for z in (x, y)]
            kept += [gradient for loss in losses for gradient in torch.autograd.grad(loss, parameters)]
        return kept

    figures = {}
    for name, loop in (("one by one", train), ("two forwards, two backwards", train_in_pairs)):
        expected, found = loop(gm), loop(runner)
        figures[name] = sum(not torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    return {"holds": not any(figures.values()), "figures": {"results that differ": figures}}


def planted(seconds: float) -> Findings:
    """Every wrong candidate of a region is rejected, each for a bug of its own. Eager's own graph is accepted."""
    gm, inputs = _captured(_Net().cuda(), torch.randn(32, 64, device="cuda"))
    policy = Policy(is_steady=False)
    figures = {
        "eager": check(gm, gm, inputs, policy).reason,
        "cudagraph": check(_graphed(gm), gm, inputs, policy).reason,
    }
    sound = check(gm, gm, inputs, policy).accepted and check(_graphed(gm), gm, inputs, policy).accepted
    accepted = []
    for name, bug in _bugs(gm).items():
        verdict = check(bug, gm, inputs, policy)
        figures[name] = verdict.reason
        if verdict.accepted:
            accepted.append(name)
    return {"holds": sound and not accepted, "why": f"accepted: {accepted}", "figures": figures}


def _bugs(gm: fx.GraphModule) -> dict[str, Region]:
    memory: list[torch.Tensor] = []

    def scaled(*args: Any) -> Sequence[Any]:
        return [value * 1.01 for value in gm(*args)]

    def rounded(*args: Any) -> Sequence[Any]:
        return [value.half().float() for value in gm(*args)]

    def detached(*args: Any) -> Sequence[Any]:
        return [value.detach() for value in gm(*args)]

    def elsewhere(*args: Any) -> Sequence[Any]:
        return [value.cpu() for value in gm(*args)]

    def without_numbers(*args: Any) -> Sequence[Any]:
        state = torch.cuda.get_rng_state()
        results = list(gm(*args))
        torch.cuda.set_rng_state(state)
        return results

    def reused(*args: Any) -> Sequence[Any]:
        results = list(gm(*args))
        if not memory:
            memory.append(torch.empty_like(results[0]))
        with torch.no_grad():
            memory[0].copy_(results[0])
        return [_WithGradient.apply(results[0], memory[0]), *results[1:]]

    return {
        "scaled": scaled,
        "rounded": rounded,
        "detached": detached,
        "on the host": elsewhere,
        "draws no numbers": without_numbers,
        "overwrites its results": reused,
    }
