# SPDX-License-Identifier: Apache-2.0
"""torchvision MobileNetV3 small: depthwise convolutions, hard-swish, squeeze-and-excite, many small operators."""

import torch
from torchvision.models import mobilenet_v3_small

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, Workload, cross_entropy, supervised


def make() -> Training:
    model = mobilenet_v3_small(weights=None, num_classes=8)
    batches = data.shuffled_batches(*data.photo_patches(64, 128, seed=4), batch=16, count=8, seed=4)
    return supervised(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), cross_entropy, batches)


WORKLOAD = Workload("mobilenet_v3", "depthwise convolution and many small operators, photo patches", 4, make)
