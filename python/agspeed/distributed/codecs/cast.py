# SPDX-License-Identifier: Apache-2.0
"""Sends gradients as float16 or bfloat16."""

from __future__ import annotations

from typing import ClassVar

import torch

from agspeed.distributed.codecs.codec import Bucket, Codec, Steps, Wire, average_densely

__all__ = ["BFloat16", "Float16"]


class _Cast(Codec):
    dtype: ClassVar[torch.dtype]

    def describe(self) -> str:
        return self.name

    def steps(self, bucket: Bucket, wire: Wire) -> Steps:
        values = bucket.values
        if not values.is_floating_point() or values.element_size() <= self.dtype.itemsize:
            yield from average_densely(values, wire)
            return
        # The division comes first, so that the sum of float16 values stays in their range.
        values.copy_((yield wire.all_reduce((values / wire.size).to(self.dtype))))


class Float16(_Cast):
    """Halves the bytes of float32. Averages beyond 65504 become infinite, and the smallest ones zero."""

    name, dtype = "fp16", torch.float16


class BFloat16(_Cast):
    """Halves the bytes of float32, with its range and 8 bits of precision."""

    name, dtype = "bf16", torch.bfloat16
