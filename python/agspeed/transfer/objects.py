# SPDX-License-Identifier: Apache-2.0
"""Encodes objects of a few harmless types as bytes, for broadcast_object and allgather_object.

The types are None, bool, int, float, str, bytes, list, tuple, set, dict, torch.dtype, torch.Size and dense tensors.
Decoding never runs code that the bytes name, and raises an error for bytes that `encode` does not write. Format: a tag
of one byte, then either a fixed value, or a length of eight bytes followed by the content; little-endian.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import Any

import torch

from agspeed.errors import UserError, UserTypeError

__all__ = ["decode", "encode"]

_MAX_DEPTH = 64
_TYPES = "None, bool, int, float, str, bytes, list, tuple, set, dict, torch.dtype, torch.Size and dense tensors"
_SEQUENCES: dict[bytes, Any] = {b"l": list, b"u": tuple, b"z": torch.Size, b"e": set, b"r": frozenset}
_TAGS = {kind: tag for tag, kind in _SEQUENCES.items()}
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    )
}


def encode(value: Any) -> bytes:
    """Encodes an object. Raises: UserTypeError that names a type if it is not one of the types above."""
    parts: list[bytes] = []
    _write(value, parts, 0)
    return b"".join(parts)


def decode(data: bytes) -> Any:
    """Decodes an object. Raises: UserError for bytes that `encode` does not write."""
    reader = _Reader(data)
    try:
        value = reader.read(0)
    except UserError:
        raise
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:  # e.g. a list as a key, invalid UTF-8
        raise UserError(f"an object from another rank cannot be read: {type(error).__name__}: {error}.") from None
    if reader.at != len(data):
        raise UserError(f"an object of {len(data)} bytes ends after {reader.at}: its sender writes another format.")
    return value


def _write(value: Any, parts: list[bytes], depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise UserError(f"an object is nested more than {_MAX_DEPTH} deep: send its parts one by one.")
    kind = type(value)
    if value is None or kind is bool:
        parts.append({None: b"n", True: b"t", False: b"f"}[value])
    elif kind is int:
        raw = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
        parts += [b"i", _length(raw), raw]
    elif kind is float:
        parts += [b"d", struct.pack("<d", value)]
    elif kind in (str, bytes):
        raw = value.encode("utf-8", "surrogatepass") if kind is str else value
        parts += [b"s" if kind is str else b"b", _length(raw), raw]
    elif kind in _TAGS:
        parts += [_TAGS[kind], _length(value)]
        for each in value:
            _write(each, parts, depth + 1)
    elif kind in (dict, OrderedDict):
        parts += [b"m" if kind is dict else b"o", _length(value)]
        for key, each in value.items():
            _write(key, parts, depth + 1)
            _write(each, parts, depth + 1)
    elif kind is torch.dtype:
        parts.append(b"y")
        _write(str(value).removeprefix("torch."), parts, depth + 1)
    elif isinstance(value, torch.Tensor):
        _write_tensor(value, parts, depth)
    else:
        raise UserTypeError(
            f"an object of type {kind.__module__}.{kind.__qualname__} cannot be sent to other ranks: these types can, "
            f"{_TYPES}. Send its fields in a dict."
        )


def _write_tensor(value: torch.Tensor, parts: list[bytes], depth: int) -> None:
    if value.layout != torch.strided or str(value.dtype).removeprefix("torch.") not in _DTYPES:
        raise UserTypeError(f"a tensor of {value.dtype}, {value.layout} cannot be sent to other ranks: make it dense.")
    dense = value.detach().cpu().contiguous()
    raw = bytes(dense.reshape(-1).view(torch.uint8).numpy()) if dense.numel() else b""
    parts.append(b"T")
    _write(str(value.dtype).removeprefix("torch."), parts, depth + 1)
    _write(tuple(value.shape), parts, depth + 1)
    parts += [_length(raw), raw]


def _length(counted: Any) -> bytes:
    return struct.pack("<Q", len(counted))


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def read(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise UserError(f"an object from another rank is nested more than {_MAX_DEPTH} deep.")
        tag = self._take(1)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag == b"d":
            return struct.unpack("<d", self._take(8))[0]
        if tag == b"y":
            return self._dtype(depth)
        if tag == b"T":
            return self._tensor(depth)
        count = self._count()
        if tag == b"i":
            return int.from_bytes(self._take(count), "little", signed=True)
        if tag == b"s":
            return self._take(count).decode("utf-8", "surrogatepass")
        if tag == b"b":
            return self._take(count)
        if tag in _SEQUENCES:
            return _SEQUENCES[tag]([self.read(depth + 1) for _ in range(count)])
        if tag in _MAPPINGS:
            return _MAPPINGS[tag]([(self.read(depth + 1), self.read(depth + 1)) for _ in range(count)])
        raise UserError(f"an object from another rank has {tag!r} at byte {self.at - 1}, which says no type.")

    def _take(self, count: int) -> bytes:
        if count > len(self._data) - self.at:
            raise UserError(f"an object from another rank ends after {len(self._data)} bytes, too early.")
        self.at += count
        return self._data[self.at - count : self.at]

    def _count(self) -> int:
        count: int = struct.unpack("<Q", self._take(8))[0]
        if count > len(self._data) - self.at:
            raise UserError(
                f"an object from another rank counts {count} where {len(self._data) - self.at} bytes are left."
            )
        return count

    def _dtype(self, depth: int) -> torch.dtype:
        name = self.read(depth + 1)
        if not isinstance(name, str) or name not in _DTYPES:
            raise UserError(f"an object from another rank has a tensor of type {name!r}, which there is not.")
        return _DTYPES[name]

    def _tensor(self, depth: int) -> torch.Tensor:
        dtype, shape = self._dtype(depth), self.read(depth + 1)
        raw = bytearray(self._take(self._count()))
        if not isinstance(shape, tuple) or not all(type(each) is int and each >= 0 for each in shape):
            raise UserError(f"an object from another rank has a tensor of shape {shape!r}.")
        size = dtype.itemsize
        for each in shape:
            size *= each
        if size != len(raw):
            raise UserError(f"an object from another rank has {len(raw)} bytes for a tensor of shape {shape}, {dtype}.")
        return torch.frombuffer(raw, dtype=dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)


_CONSTANTS = {b"n": None, b"t": True, b"f": False}
_MAPPINGS: dict[bytes, Any] = {b"m": dict, b"o": OrderedDict}
