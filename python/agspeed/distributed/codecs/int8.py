# SPDX-License-Identifier: Apache-2.0
"""Sends gradients as bytes with a scale for each block of 256 values.

1. Each rank divides its bucket into one part for each rank, encodes the parts, and sends part r to rank r.
2. Rank r decodes the parts that it got, averages them in float32, and encodes the average.
3. All ranks gather these codes and decode them. So all ranks decode the same bytes.

Each message ends with a byte that says whether its sender has met NaN or infinity. All ranks receive a message from
every rank in both exchanges, so they all know. Then they send the bucket again, densely.
"""

from __future__ import annotations

from collections.abc import Generator

import torch

from agspeed.distributed.codecs import kernels
from agspeed.distributed.codecs.codec import Bucket, Codec, Pending, Steps, Wire, average_densely

__all__ = ["Int8", "average_as_bytes"]


class Int8(Codec):
    """Takes a quarter of the bytes of float32. See the module's docstring.

    dense_below: buckets with fewer values are sent densely.
    """

    name = "int8"

    def __init__(self, dense_below: int = 4096) -> None:
        self.dense_below = dense_below

    def describe(self) -> str:
        return f"{self.name}(dense_below={self.dense_below})"

    def steps(self, bucket: Bucket, wire: Wire) -> Steps:
        values = bucket.values
        if values.dtype not in (torch.float32, torch.float16, torch.bfloat16) or values.numel() < self.dense_below:
            yield from average_densely(values, wire)
            return
        source = values.float()
        if not (yield from average_as_bytes(source, wire)):
            self._refuse(bucket)
            yield from average_densely(values, wire)
        elif source is not values:
            values.copy_(source)


def average_as_bytes(
    values: torch.Tensor, wire: Wire, lost: torch.Tensor | None = None
) -> Generator[Pending, torch.Tensor, bool]:
    """Replaces float32 values by their average over the ranks, as all ranks decode it. Returns True; or False, and
    leaves the values, if a rank has NaN or infinity.

    lost: a tensor for the error of this rank, for error feedback. The result plus the ranks' average of `lost` is the
    exact average, except for the rounding of float32. It has no meaning if the function returns False.
    """
    length = -(-values.numel() // (wire.size * kernels.INT8_BLOCK)) * kernels.INT8_BLOCK
    parts = _parts(values, length, wire.size)
    rows = _encoded(parts, length)
    exchange = wire.all_to_all(rows)
    errors = []
    if lost is not None:
        errors = _parts(lost.copy_(values), length, wire.size)
        for error, row in zip(errors, rows, strict=True):
            _decode(error, row, -1.0, adds=True)
    received = yield exchange
    if received[:, -1].any():
        return False
    average = torch.zeros_like(parts[wire.rank])
    for row in received:
        _decode(average, row, 1 / wire.size, adds=True)
    [code] = _encoded([average], length)
    codes = yield wire.all_gather(code)
    if codes[:, -1].any():
        return False
    for part, each in zip(parts, codes, strict=True):
        _decode(part, each)
    if errors:
        # All ranks have received the error of this part of the average, and this rank alone can send it later.
        errors[wire.rank].add_(average.sub_(parts[wire.rank]), alpha=wire.size)
    return True


def _parts(values: torch.Tensor, length: int, size: int) -> list[torch.Tensor]:
    return [values[length * rank : length * (rank + 1)] for rank in range(size)]


def _decode(values: torch.Tensor, row: torch.Tensor, factor: float = 1.0, *, adds: bool = False) -> None:
    kernels.decode_int8(values, row[: kernels.int8_bytes(values.numel())], factor, adds=adds)


def _encoded(parts: list[torch.Tensor], length: int) -> torch.Tensor:
    """Returns a message for each part, for up to `length` values. The last byte is 1 if a value of any part is not
    finite."""
    rows = torch.zeros(len(parts), kernels.int8_bytes(length) + 1, dtype=torch.uint8, device=parts[0].device)
    codes = [row[: kernels.int8_bytes(part.numel())] for row, part in zip(rows, parts, strict=True)]
    # A list, because every part has to be encoded.
    are_finite = [kernels.encode_int8(code, part) for code, part in zip(codes, parts, strict=True)]
    rows[:, -1] = 0 if all(are_finite) else 1
    return rows
