# SPDX-License-Identifier: Apache-2.0
"""Message sizes as people write them: 25MiB, 256KiB, 4096B."""

import re

_UNITS = {"MiB": 1 << 20, "KiB": 1 << 10, "B": 1}


def parse(text: str) -> int:
    """Returns the number of bytes. Raises ValueError if the text is no size, or not a whole number of float32
    values."""
    match = re.fullmatch(r"(\d+) ?(B|KiB|MiB)", text)
    size = int(match[1]) * _UNITS[match[2]] if match else 0
    if size < 4 or size % 4:
        raise ValueError(f"{text!r} is not a size; write it like 25MiB, 256KiB or 4096B, a multiple of 4 bytes")
    return size


def show(size: int) -> str:
    unit = next(unit for unit, factor in _UNITS.items() if size % factor == 0)
    return f"{size // _UNITS[unit]} {unit}"
