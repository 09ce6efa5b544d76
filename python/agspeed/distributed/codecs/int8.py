# SPDX-License-Identifier: Apache-2.0
"""Sends gradients as bytes with a scale for each block of 256 values.

1. Each rank divides its bucket into one part for each rank, encodes the parts, and sends part r to rank r.
2. Rank r decodes the parts that it got, averages them in float32, and encodes the average.
3. All ranks gather these codes and decode them. So all ranks decode the same bytes.

Each message ends with a byte that says whether its sender has met NaN or infinity. All ranks receive a message from
every rank in both exchanges, so they all know. Then they send the bucket again, densely.
"""

from __future__ import annotations

import torch

from agspeed.distributed.codecs import kernels
from agspeed.distributed.codecs.codec import Bucket, Codec, Steps, Wire, average_densely

__all__ = ["Int8"]


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
        length = -(-values.numel() // (wire.size * kernels.INT8_BLOCK)) * kernels.INT8_BLOCK
        parts = [source[length * rank : length * (rank + 1)] for rank in range(wire.size)]
        received = yield wire.all_to_all(_encoded(parts, length))
        codes = None
        if not received[:, -1].any():
            # This rank's own part has the same length in all rows, because the rows differ by sender only.
            codes = yield wire.all_gather(_encoded([self._averaged(parts, received, wire)], length)[0])
        if codes is None or codes[:, -1].any():
            self._refuse(bucket)
            yield from average_densely(values, wire)
            return
        for part, code in zip(parts, codes, strict=True):
            kernels.decode_int8(part, code[: kernels.int8_bytes(part.numel())])
        if source is not values:
            values.copy_(source)

    @staticmethod
    def _averaged(parts: list[torch.Tensor], received: torch.Tensor, wire: Wire) -> torch.Tensor:
        total = torch.zeros_like(parts[wire.rank])
        for row in received:
            kernels.decode_int8(total, row[: kernels.int8_bytes(total.numel())], 1 / wire.size, adds=True)
        return total


def _encoded(parts: list[torch.Tensor], length: int) -> torch.Tensor:
    """Returns a message for each part, for up to `length` values. The last byte is 1 if a value of any part is not
    finite."""
    rows = torch.zeros(len(parts), kernels.int8_bytes(length) + 1, dtype=torch.uint8, device=parts[0].device)
    codes = [row[: kernels.int8_bytes(part.numel())] for row, part in zip(rows, parts, strict=True)]
    # A list, because every part has to be encoded.
    are_finite = [kernels.encode_int8(code, part) for code, part in zip(codes, parts, strict=True)]
    rows[:, -1] = 0 if all(are_finite) else 1
    return rows
