# SPDX-License-Identifier: Apache-2.0
"""Architectures of timm, on patches of two photographs."""

from collections.abc import Callable
from typing import Any

import timm
import torch
from torch import nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, cross_entropy, supervised


def _training(model: nn.Module, size: int, batch: int = 8) -> Training:
    batches = data.shuffled_batches(*data.photo_patches(size, 8 * batch, seed=5), batch=batch, count=8, seed=5)
    return supervised(model, torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True), cross_entropy, batches)


def _model(name: str, **options: Any) -> nn.Module:
    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=8, **options)
    return model


def efficientnet() -> Training:
    """EfficientNet B0: depthwise convolutions, squeeze-and-excite, SiLU, BatchNorm, stochastic depth."""
    return _training(_model("efficientnet_b0", drop_path_rate=0.1), size=64)


def convnextv2() -> Training:
    """ConvNeXt V2: depthwise convolutions, LayerNorm, global response normalisation whose scale begins at zero."""
    return _training(_model("convnextv2_atto", depths=(1, 1, 2, 1), dims=(24, 48, 96, 192)), size=64)


def swin() -> Training:
    """Swin: attention in shifted windows, relative position biases."""
    options = {"img_size": 64, "patch_size": 2, "window_size": 4}
    stages = {"embed_dim": 48, "depths": (1, 1, 2), "num_heads": (2, 4, 8)}
    return _training(_model("swin_tiny_patch4_window7_224", **options, **stages), size=64)


def vit_checkpointed() -> Training:
    """Vision transformer with gradient checkpointing and class attention's layer scale."""
    options = {"img_size": 32, "patch_size": 4, "embed_dim": 128, "depth": 4, "num_heads": 4, "init_values": 1e-4}
    model = _model("vit_tiny_patch16_224", **options)
    model.set_grad_checkpointing(True)
    return _training(model, size=32)


def resnet_d() -> Training:
    """ResNet-10-T: deep stem, averaging shortcuts, BatchNorm."""
    return _training(_model("resnet10t"), size=64)


def regnet_y() -> Training:
    """RegNetY: grouped convolutions with squeeze-and-excite."""
    return _training(_model("regnety_002"), size=64)


def coatnet() -> Training:
    """CoAtNet: inverted-bottleneck convolutions, then attention with relative position biases."""
    options = {"img_size": 64, "embed_dim": (32, 64, 96, 128), "depths": (1, 1, 1, 1), "stem_width": (16, 32)}
    return _training(_model("coatnet_nano_rw_224", **options), size=64)


RECIPES: dict[str, Callable[[], Training]] = {
    make.__name__: make for make in (efficientnet, convnextv2, swin, vit_checkpointed, resnet_d, regnet_y, coatnet)
}
