# SPDX-License-Identifier: Apache-2.0
"""Compressors, which make a gradient smaller before it is reduced.

A compressor converts one tensor, and works in every reduction. A codec averages gradients by collectives of its own
(`agspeed/distributed/codecs`), and works in DistributedOptimizer only. Horovod has `none` and `fp16`.
"""

from __future__ import annotations

from typing import Any

import torch

from agspeed.distributed.codecs.auto import Auto
from agspeed.distributed.codecs.codec import Codec
from agspeed.distributed.codecs.int8 import Int8
from agspeed.distributed.codecs.topk import TopK
from agspeed.errors import UserError

__all__ = [
    "AutoCompressor",
    "BF16Compressor",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "Int8Compressor",
    "NoneCompressor",
    "TopKCompressor",
    "codec_of",
    "described",
]


class Compressor:
    """The interface: compress() returns the tensor that travels and a context; decompress() reverses it with both."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


class FP16Compressor(Compressor):
    """Sends floats as float16, and other types as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return (tensor.half() if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx) if ctx.is_floating_point else tensor


class BF16Compressor(FP16Compressor):
    """Sends floats as bfloat16, and other types as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return (tensor.bfloat16() if tensor.is_floating_point() else tensor), tensor.dtype


class _OptimizerOnly(Compressor):
    """A compressor in name only, because a codec needs several collectives."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        raise UserError(
            "hvd.Compression.auto, int8 and topk average gradients by collectives of their own: pass them to "
            "hvd.DistributedOptimizer() with op=hvd.Average or hvd.Sum, or use hvd.Compression.fp16 or bf16 here."
        )


class AutoCompressor(Auto, _OptimizerOnly):
    """Sends a gradient as bfloat16 or bytes if that makes training steps shorter, else densely.

    `AutoCompressor(max_error=0.05, dense_below=4096)` has options. If no gradient gains, the optimizer goes back to
    plain reductions after its measurements, for the rest of the job.
    """


class Int8Compressor(Int8, _OptimizerOnly):
    """Sends gradients as bytes, with a scale for each 256 values. `Int8Compressor(dense_below=4096)` has options."""


class TopKCompressor(TopK, _OptimizerOnly):
    """Sends the largest gradients, and adds the others to the next step's (error feedback).

    `TopKCompressor(density=0.01, momentum=0.0, warmup_steps=0, dense_below=4096)` has options.
    """


class Compression:
    """The available compressors. Pass `auto`, `int8` and `topk` as they are, or call them with options."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    auto = AutoCompressor
    int8 = Int8Compressor
    topk = TopKCompressor


def codec_of(compression: Any) -> Codec | None:
    """Returns the codec of a `compression` argument, with default options if it is a class; None for a compressor."""
    if isinstance(compression, type) and issubclass(compression, Codec):
        made: Codec = compression()
        return made
    return compression if isinstance(compression, Codec) else None


def described(compression: Any) -> str:
    """Returns the name of a compressor, or the description of a codec, for comparison between ranks."""
    if isinstance(compression, Codec):
        return compression.describe()
    return str(getattr(compression, "__name__", type(compression).__name__))
