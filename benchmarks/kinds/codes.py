# SPDX-License-Identifier: Apache-2.0
"""The speed at which one core encodes and decodes gradients: the lossless code, and the parts of the lossy codecs.

Each run of a case names a code, values and their type. `benchmarks/comm/gradients.py` makes the values. Codes:

- lossless: `comm/compress/lossless.h`.
- int8: `comm/compress/int8.h`. Decoding adds to the sum, as the owner of a part does.
- topk: the selection of the largest hundredth of the values, and the copy of these values back to their places.

Each round encodes, decodes and copies the same bytes twice. The second copy is the control. In each round, one of the
two copies follows an encoding and the other one a decoding, and they change places. Speeds are bytes of values per
second. Codes are written into memory that exists, as the transport does.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.comm import gradients
from benchmarks.measure.machine import Watch
from benchmarks.measure.statistics import median_estimate

_BYTES = 16 << 20
_ROUNDS = 25
_DENSITY = 0.01
_VOID = (0.97, 1.03)

Actions = tuple[Callable[[], Any], Callable[[], Any], float]
"""Encode, decode, and the bytes of the values over the bytes of the code."""


def plan(case: dict[str, Any], threads: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [{}]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    watch = Watch(spec["cores"])
    rows = [_row(*run.split()) for run in spec["case"]["runs"]]
    return {"codes": rows, "environment": watch.read()}


def _row(code: str, values: str, dtype: str) -> dict[str, Any]:
    source = gradients.make(_BYTES, values, dtype)
    target = torch.empty_like(source)
    encode, decode, ratio = _CODES[code](source, target)
    runs = {"encode": encode, "decode": decode, "copy": lambda: target.copy_(source)}
    runs["control"] = runs["copy"]
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for name in [*runs, *("encode", "copy", "decode", "control", "encode", "control", "decode", "copy") * _ROUNDS]:
        started = time.perf_counter()
        runs[name]()
        seconds[name].append(time.perf_counter() - started)
    size = source.numel() * source.element_size()
    speeds = {
        f"{name}_gb_per_s": median_estimate([1e-9 * size / each for each in found]).to_dict()
        for name, (_, *found) in seconds.items()
    }
    return {"code": code, "values": values, "dtype": dtype, "bytes": size, "ratio": ratio, **speeds}


def _lossless(source: Tensor, target: Tensor) -> Actions:
    from agspeed import _native

    room = torch.empty(_native.lossless_bytes(source), dtype=torch.uint8)
    code = room[: _native.lossless_encode(room, source)]
    _native.lossless_decode(target, code)
    if not torch.equal(target.view(torch.uint8), source.view(torch.uint8)):
        raise RuntimeError(f"the lossless code has changed bits of {source.dtype}")
    ratio = source.numel() * source.element_size() / code.numel()
    return lambda: _native.lossless_encode(room, source), lambda: _native.lossless_decode(target, code), ratio


def _int8(source: Tensor, target: Tensor) -> Actions:
    from agspeed import _native

    code = torch.empty(_native.int8_bytes(source.numel()), dtype=torch.uint8)
    ratio = source.numel() * source.element_size() / code.numel()
    return (
        lambda: _native.int8_encode(code, source),
        lambda: _native.int8_decode(target, code, 0.5, True),
        ratio,
    )


def _topk(source: Tensor, target: Tensor) -> Actions:
    from agspeed import _native

    places = torch.empty(int(_DENSITY * source.numel()), dtype=torch.int32)
    _native.select_largest(places, source)
    pattern = places.long()
    found = source[pattern]

    def decode() -> None:
        target.zero_()
        target[pattern] = found

    ratio = source.element_size() * source.numel() / (places.element_size() + found.element_size()) / places.numel()
    return lambda: _native.select_largest(places, source), decode, ratio


_CODES: dict[str, Callable[[Tensor, Tensor], Actions]] = {"lossless": _lossless, "int8": _int8, "topk": _topk}


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """A cell is void if the second copy is not as fast as the first."""
    [cell] = results
    for row in cell["codes"]:
        row["control"] = row["control_gb_per_s"]["value"] / row["copy_gb_per_s"]["value"]
        if not _VOID[0] <= row["control"] <= _VOID[1]:
            reason = f"a second copy differs by {row['control']:.3f} ({row['code']}, {row['values']} {row['dtype']})"
            return cell | {"status": "void", "reason": reason}
    return cell | {"status": "ok"}
