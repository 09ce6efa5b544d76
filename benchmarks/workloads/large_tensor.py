# SPDX-License-Identifier: Apache-2.0
"""Learns a tone curve on an enlarged photograph: element-wise work on tensors above 32 MB, bound by memory."""

import torch
from torch import Tensor, nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, Workload, mean_squared, supervised

_SIZE = (1680, 1680)


class ToneCurve(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain, self.slope = nn.Parameter(torch.ones(3, 1, 1)), nn.Parameter(torch.ones(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * torch.tanh(x * self.slope)


def make() -> Training:
    small = data.photo("china.jpg").unsqueeze(0)
    image = nn.functional.interpolate(small, size=_SIZE, mode="bilinear").squeeze(0)
    target = image.sqrt() * 0.9 + 0.05
    model = ToneCurve()
    return supervised(model, torch.optim.Adam(model.parameters(), lr=0.05), mean_squared, [(image, target)])


WORKLOAD = Workload("large_tensor", "element-wise chain on 34 MB tensors, photograph", 17, make, learn_steps=15)
