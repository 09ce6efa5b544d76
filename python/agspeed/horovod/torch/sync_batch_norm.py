# SPDX-License-Identifier: Apache-2.0
"""SyncBatchNorm: batch normalization by the statistics of all ranks, on any device."""

from __future__ import annotations

import itertools

import torch

from agspeed.horovod.torch import job, mpi_ops
from agspeed.horovod.torch.arguments import Sum
from agspeed.torch_compat.modules import _BatchNorm

__all__ = ["SyncBatchNorm"]

_numbers = itertools.count()


class SyncBatchNorm(_BatchNorm):
    """Like torch.nn.BatchNorm*d, with statistics over the batches of all ranks.

    All ranks must create their layers in the same order.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self._name = f"sync_batch_norm.{next(_numbers)}"

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        is_by_batch = self.training or self.running_mean is None
        if not is_by_batch or job.current().where.size == 1:
            return super().forward(input)
        dims = [dim for dim in range(input.dim()) if dim != 1]
        values = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        shape = [1, -1] + [1] * (input.dim() - 2)
        count = values.new_full((1,), float(values.numel() // values.shape[1]))
        total = mpi_ops.allreduce(torch.cat([values.sum(dims), count]), name=f"{self._name}.sum", op=Sum)
        num_values = total[-1].detach()
        mean = total[:-1] / num_values
        centered = values - mean.view(shape)
        squares = mpi_ops.allreduce(centered.square().sum(dims), name=f"{self._name}.squares", op=Sum)
        variance = squares / num_values
        if self.training and self.running_mean is not None and self.running_var is not None:
            self._update(mean.detach(), variance.detach(), num_values)
        result = centered * torch.rsqrt(variance.view(shape) + self.eps)
        if self.affine:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        return result.to(input.dtype)

    @torch.no_grad()
    def _update(self, mean: torch.Tensor, variance: torch.Tensor, num_values: torch.Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        factor = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        unbiased = variance * num_values / (num_values - 1).clamp(min=1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)
