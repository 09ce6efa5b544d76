# SPDX-License-Identifier: Apache-2.0
"""Gradients to try codecs on: from a file of the user, or from a few steps of a small language model."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from agspeed.errors import UserError

__all__ = ["built_in", "of_file"]

_CONTEXT, _WIDTH, _BATCH, _STEPS = 32, 128, 16, 6


def of_file(name: str, rank: int) -> list[torch.Tensor]:
    """Returns the floating-point tensors in a file of `torch.save`: one tensor, or a list or dict of tensors.

    "{rank}" in the name becomes the rank's number. Raises: UserError for any other file.
    """
    path = Path(name.replace("{rank}", str(rank)))
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load has many ways to fail on a file that is not its own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"--gradients {path}: torch cannot load it ({reason}). Save tensors with torch.save()."
        ) from None
    found = [each.detach().float().contiguous() for each in _tensors(content) if each.numel()]
    if not found:
        raise UserError(f"--gradients {path}: there is no tensor of floats in it. Save a tensor, a list or a dict.")
    return found


def _tensors(content: Any) -> Iterator[torch.Tensor]:
    if isinstance(content, torch.Tensor) and content.is_floating_point():
        yield content.to_dense() if content.is_sparse else content
    elif isinstance(content, dict):
        for each in content.values():
            yield from _tensors(each)
    elif isinstance(content, (list, tuple)):
        for each in content:
            yield from _tensors(each)


def built_in(rank: int) -> list[torch.Tensor]:
    """Returns the gradients of the sixth step of a small transformer that learns the next character of torch's own
    source. Each rank has batches of its own."""
    codes = torch.tensor([min(ord(each), 127) for each in inspect.getsource(nn.modules.transformer)])
    generator = torch.Generator().manual_seed(rank)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, dropout=0.0, batch_first=True) for _ in range(2)]
        model = nn.Sequential(nn.Embedding(128, _WIDTH), *layers, nn.Linear(_WIDTH, 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(_STEPS):
        optimizer.step()
        optimizer.zero_grad()
        starts = torch.randint(len(codes) - _CONTEXT - 1, (_BATCH, 1), generator=generator)
        windows = codes[starts + torch.arange(_CONTEXT + 1)]
        # The last position alone is predicted, because the layers see all positions.
        nn.functional.cross_entropy(model(windows[:, :-1])[:, -1], windows[:, -1]).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
