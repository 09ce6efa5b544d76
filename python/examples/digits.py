# SPDX-License-Identifier: Apache-2.0
"""The data and the model of these examples: 1,797 hand-written digits that ship with scikit-learn."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset


def dataset() -> TensorDataset:
    """Images of shape [64] with values from 0 to 1, and their labels."""
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))


def classifier() -> nn.Module:
    """A network that turns an image into logits of shape [10]."""
    layers = [layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU(), nn.Dropout(0.1))]
    return nn.Sequential(nn.Linear(64, 128), *layers, nn.Linear(128, 10))
