# SPDX-License-Identifier: Apache-2.0
"""The peak memory of native steps: a backward frees each saved tensor after its last use, if nothing else needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import agspeed
from agspeed import native

pytestmark = [pytest.mark.usefixtures("needs_native", "one_thread")]
SEED = 5
ROWS, COLUMNS, DEPTH = 2048, 256, 6
MOST = 1.15
"""The peak of a native step over the peak of eager's."""


def convolutions() -> tuple[nn.Module, Tensor]:
    stages = [
        nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        for _ in range(DEPTH)
    ]
    return nn.Sequential(*stages), torch.randn(32, 16, 32, 32)


def perceptron() -> tuple[nn.Module, Tensor]:
    stages = [
        nn.Sequential(nn.Linear(COLUMNS, COLUMNS), nn.LayerNorm(COLUMNS), nn.Tanh(), nn.Dropout(0.0))
        for _ in range(DEPTH)
    ]
    return nn.Sequential(*stages), torch.randn(ROWS, COLUMNS)


class OneWeight(nn.Module):
    """Uses one weight in each of many steps, so its gradient is the sum of as many products."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(COLUMNS, COLUMNS)

    def forward(self, data: Tensor) -> Tensor:
        state = torch.zeros_like(data[0])
        for part in data:
            state = torch.tanh(self.cell(state) + part)
        return state


class Interactions(nn.Module):
    """Products of pairs of rows, whose gradients are larger than all that native kernels compute."""

    def forward(self, data: Tensor) -> Tensor:
        rows = torch.tanh(data).unflatten(1, (16, -1))
        return torch.bmm(rows, rows.transpose(1, 2))


def interactions() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(COLUMNS, 16 * COLUMNS), Interactions()), torch.randn(64, COLUMNS)


def step(model: nn.Module, data: Tensor) -> None:
    model.zero_grad()
    model(data).square().mean().backward()


def peak(model: nn.Module, data: Tensor) -> int:
    """Bytes above what is live between two steps."""
    module: Any = native.load()
    meter = module.MemoryMeter()
    model.zero_grad()
    meter.start()
    step(model, data)
    meter.stop()
    return int(meter.peak_bytes())


def make_native(model: nn.Module, data: Tensor, folder: Path) -> None:
    agspeed.optimize(model, mode="deterministic", backends=["native"], cache_dir=str(folder))
    for _ in range(8):
        step(model, data)
        agspeed.wait(model)
    assert {region["chosen"] for region in agspeed.report(model).to_dict()["regions"]} == {"native"}


@pytest.mark.parametrize("make", [convolutions, perceptron, interactions])
def test_a_native_step_needs_about_as_much_memory_as_eager(make: Any, tmp_path: Path) -> None:
    torch.manual_seed(SEED)
    model, data = make()
    step(model, data)
    before = peak(model, data)
    make_native(model, data, tmp_path)
    after = peak(model, data)
    agspeed.restore(model)
    assert after <= MOST * before, f"{after} bytes, eager {before}"


def test_few_gradients_of_one_weight_wait_for_their_sum(tmp_path: Path) -> None:
    torch.manual_seed(SEED)
    model, data = OneWeight(), torch.randn(16, 8, COLUMNS)
    step(model, data)
    before = peak(model, data)
    make_native(model, data, tmp_path)
    after = peak(model, data)
    agspeed.restore(model)
    weight = 4 * COLUMNS * COLUMNS
    assert after <= before + 4 * weight, f"{after} bytes, eager {before}, one gradient {weight}"


def test_a_retained_graph_keeps_its_saved_tensors(tmp_path: Path) -> None:
    torch.manual_seed(SEED)
    model, data = perceptron()
    make_native(model, data, tmp_path)
    loss = model(data).square().mean()
    gradients = []
    for retain in (True, True, False):
        model.zero_grad()
        loss.backward(retain_graph=retain)
        gradients.append([parameter.grad for parameter in model.parameters()])
    agspeed.restore(model)
    for other in gradients[1:]:
        assert all(torch.equal(a, b) for a, b in zip(gradients[0], other, strict=True))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
