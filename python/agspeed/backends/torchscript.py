# SPDX-License-Identifier: Apache-2.0
"""`torchscript`: traces the captured graph into TorchScript.

A legacy candidate: TorchScript is deprecated since torch 2.11. CPU wheels have no LLVM, so its fuser does nothing on
the CPU. It runs only if ``backends=`` names it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from agspeed.backends.base import Candidate, CompileOptions, Runner
from agspeed.errors import UnsupportedError
from agspeed.torch_compat.shapes import unset_fake_temporarily


class TorchScript(Candidate):
    """Runs ``torch.jit.trace`` on the graph, with zeros of the captured shapes as inputs."""

    name = "torchscript"
    default = False

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions) -> Runner:
        if not all(isinstance(value, torch.Tensor) for value in example_inputs):
            raise UnsupportedError("TorchScript's tracer takes tensors only; this region has integer inputs")
        inputs = tuple(_zeros_like(value) for value in example_inputs)
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(gm, inputs, check_trace=False)

        def run(*args: Any) -> Sequence[Any]:
            result = traced(*args)
            return result if isinstance(result, (tuple, list)) else (result,)

        return run


def _zeros_like(fake: torch.Tensor) -> torch.Tensor:
    with unset_fake_temporarily():
        size = [int(n) for n in fake.size()]
        stride = [int(n) for n in fake.stride()]
        real = torch.empty_strided(size, stride, dtype=fake.dtype, device=fake.device)
        return real.zero_().requires_grad_(fake.requires_grad)
