# SPDX-License-Identifier: Apache-2.0
"""The computations of codecs: C++ for float32 on the CPU (`comm/compress`), torch's operations for everything else.

Both have the same results for `encode_int8` and `decode_int8`. They may differ in `select_largest`, if magnitudes are
equal.
"""

from __future__ import annotations

from typing import Any

import torch

from agspeed import native

__all__ = ["INT8_BLOCK", "decode_int8", "encode_int8", "int8_bytes", "select_largest"]

INT8_BLOCK = 256
_SCALE_BYTES = 4
_LARGEST_CODE = 127.0
_LEAST_MAGNITUDE = _LARGEST_CODE * torch.finfo(torch.float32).tiny


def int8_bytes(count: int) -> int:
    """The bytes of the code of `count` values: one for each value, and four for each block of 256."""
    return count + -(-count // INT8_BLOCK) * _SCALE_BYTES


def encode_int8(code: torch.Tensor, values: torch.Tensor) -> bool:
    """Encodes float32 values into `int8_bytes` bytes. Returns False, with any code, if a value is not finite."""
    if (module := _native_for(values)) is not None:
        return bool(module.int8_encode(code, values))
    rows = _rows(values, INT8_BLOCK)
    largest = rows.abs().amax(dim=1, keepdim=True)
    is_zero = largest < _LEAST_MAGNITUDE
    scales = torch.where(is_zero, 0.0, largest / _LARGEST_CODE)
    # A number over a tensor would be the number times the reciprocal, which is rounded twice.
    inverse = torch.where(is_zero, 0.0, torch.full_like(largest, _LARGEST_CODE).div_(largest))
    codes = (rows * inverse).round_().to(torch.int8)
    whole = torch.cat([scales.view(torch.uint8), codes.view(torch.uint8)], dim=1)
    code.copy_(whole.flatten()[: code.numel()])
    return bool(torch.isfinite(largest).all())


def decode_int8(values: torch.Tensor, code: torch.Tensor, factor: float = 1.0, *, adds: bool = False) -> None:
    """Stores or adds the values of a code times `factor`."""
    if (module := _native_for(values)) is not None:
        module.int8_decode(values, code, factor, adds)
        return
    rows = _rows(code, INT8_BLOCK + _SCALE_BYTES)
    scales = rows[:, :_SCALE_BYTES].clone().view(torch.float32) * torch.tensor(factor, dtype=torch.float32)
    found = (rows[:, _SCALE_BYTES:].view(torch.int8) * scales).flatten()[: values.numel()]
    values.copy_(values + found if adds else found)


def _rows(values: torch.Tensor, length: int) -> torch.Tensor:
    """Returns the values in rows of this length. Zeros fill the last one."""
    return torch.nn.functional.pad(values, (0, -values.numel() % length)).view(-1, length)


def select_largest(indices: torch.Tensor, values: torch.Tensor) -> bool:
    """Writes the indices (int32) of the values with the largest magnitudes, in ascending order. Returns False, with any
    indices, if a value is not finite."""
    if (module := _native_for(values)) is not None:
        return bool(module.select_largest(indices, values))
    magnitudes = values.abs()
    if not bool(torch.isfinite(magnitudes).all()):
        return False
    indices.copy_(torch.topk(magnitudes, indices.numel(), sorted=False).indices.sort().values)
    return True


def _native_for(values: torch.Tensor) -> Any:
    """The extension if it can compute with these values, else None."""
    return native.load() if values.is_cpu and values.dtype == torch.float32 else None
