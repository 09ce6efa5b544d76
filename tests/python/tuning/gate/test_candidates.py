# SPDX-License-Identifier: Apache-2.0
"""The gate accepts the code of the product's own compilers for ordinary training code, in every floating point type."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional

from agspeed.backends import CompileOptions, candidate
from agspeed.errors import UnsupportedError
from agspeed.graph_spec.read import example_inputs
from agspeed.tuning.gate import check as gate

pytestmark = pytest.mark.usefixtures("one_thread")
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Block(torch.nn.Module):
    """A usual block: attention, normalisation, dropout and a buffer that is updated."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.norm = torch.nn.LayerNorm(width)
        self.batch_norm = torch.nn.BatchNorm1d(width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        mixed = functional.dropout((q @ k.transpose(-1, -2) * 0.25).softmax(-1), 0.1, self.training) @ v
        x = x + functional.gelu(self.out(mixed))
        return self.batch_norm(x.transpose(1, 2)).square().mean((0, 2))  # type: ignore[no-any-return]


def _captured(model: torch.nn.Module, x: torch.Tensor) -> tuple[fx.GraphModule, list[Any]]:
    found: list[tuple[fx.GraphModule, list[Any]]] = []

    def backend(gm: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            found.append((gm, list(args)))
            return gm(*args)

        return run

    torch._dynamo.reset()
    torch.compile(copy.deepcopy(model), backend=backend, dynamic=False)(x)
    return found[0]


def _verdict(name: str, dtype: torch.dtype) -> gate.Verdict:
    torch.manual_seed(0)
    gm, inputs = _captured(Block().to(dtype), torch.randn(4, 6, 16, dtype=dtype))
    options = CompileOptions(num_threads=1)
    runner = candidate(name).compile(copy.deepcopy(gm), example_inputs(gm), options)
    return gate.check(runner, gm, inputs)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_accepts_aot(dtype: torch.dtype) -> None:
    verdict = _verdict("aot", dtype)
    assert verdict.accepted, verdict.reason
    assert verdict.reference == "float64"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inductor", "native"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_accepts_generated_code(name: str, dtype: torch.dtype) -> None:
    reason = candidate(name).unavailable()
    if reason:
        pytest.skip(f"{name} cannot run: {reason}")
    try:
        verdict = _verdict(name, dtype)
    except UnsupportedError as error:
        pytest.skip(f"{name} leaves this graph to eager: {error}")
    assert verdict.accepted, verdict.reason
    assert verdict.gradients
