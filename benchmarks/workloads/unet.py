# SPDX-License-Identifier: Apache-2.0
"""A small U-Net that removes noise from photo patches: convolutions, skip connections, resampling."""

import torch
from torch import Tensor, nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, Workload, mean_squared, supervised


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.GroupNorm(4, outputs),
        nn.SiLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.GroupNorm(4, outputs),
        nn.SiLU(),
    )


class UNet(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.enter, self.down, self.up = block(3, width), block(width, 2 * width), block(3 * width, width)
        self.exit = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.enter(x)
        low = self.down(nn.functional.max_pool2d(high, 2))
        low = nn.functional.interpolate(low, scale_factor=2.0, mode="nearest")
        return x + self.exit(self.up(torch.cat([high, low], dim=1)))


def make() -> Training:
    clean, _ = data.photo_patches(64, 32, seed=11)
    noisy = clean + 0.2 * torch.randn(clean.shape, generator=data.generator(11))
    model = UNet()
    batches = data.shuffled_batches(noisy, clean, batch=4, count=8, seed=11)
    return supervised(model, torch.optim.Adam(model.parameters(), lr=2e-3), mean_squared, batches)


WORKLOAD = Workload("unet", "convolution, GroupNorm, SiLU, resampling, skip connections, photo patches", 11, make)
