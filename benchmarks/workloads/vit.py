# SPDX-License-Identifier: Apache-2.0
"""torchvision vision transformer, four small layers, on photo patches."""

import torch
from torchvision.models import VisionTransformer

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, Workload, cross_entropy, supervised


def make() -> Training:
    model = VisionTransformer(
        image_size=32, patch_size=4, num_layers=4, num_heads=4, hidden_dim=128, mlp_dim=512, dropout=0.1, num_classes=8
    )
    batches = data.shuffled_batches(*data.photo_patches(32, 128, seed=5), batch=8, count=16, seed=5)
    return supervised(model, torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True), cross_entropy, batches)


WORKLOAD = Workload("vit", "attention, LayerNorm, GELU, dropout over 65 patches, photo patches", 5, make)
