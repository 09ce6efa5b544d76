# SPDX-License-Identifier: Apache-2.0
"""Hostile input to ranks and doctors: any JSON, and valid messages with one part changed."""

from __future__ import annotations

import json
import random
from typing import Any

_TEXTS = ("", "../../home", "/etc/passwd", "x" * 5000, "\x1b[2J", "\u202e", "\ud800", "0", "1e999", "٣", "true", "\0")
_NUMBERS = (0, -1, 1, 0.5, -0.0, 2**31, 2**63, 2**64, 10**400, 1e308, float("inf"), float("nan"))


def value(rng: random.Random, depth: int = 3) -> Any:
    """Returns any JSON value, or one that only Python's JSON reader accepts, such as NaN."""
    kind = rng.randrange(7 if depth else 5)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind <= 2:
        return rng.choice(_NUMBERS)
    if kind <= 4:
        return rng.choice(_TEXTS)
    parts = [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return parts if kind == 5 else {rng.choice(_TEXTS): part for part in parts}


def changed(rng: random.Random, valid: Any) -> Any:
    """Returns a copy with one part removed, duplicated or replaced."""
    if isinstance(valid, dict) and valid and rng.random() < 0.9:
        name = rng.choice(list(valid))
        rest = {key: each for key, each in valid.items() if key != name}
        return rest if rng.random() < 0.1 else {**rest, name: changed(rng, valid[name])}
    if isinstance(valid, list) and valid and rng.random() < 0.8:
        at, what = rng.randrange(len(valid)), rng.random()
        if what < 0.1:
            return valid[:at] + valid[at + 1 :]
        if what < 0.2:
            return valid + valid * rng.choice((1, 1000))
        return [*valid[:at], changed(rng, valid[at]), *valid[at + 1 :]]
    return value(rng)


def text(rng: random.Random, valid: Any) -> bytes:
    """Returns a message: mostly JSON, at times truncated, with other bytes in it, or nested deeply."""
    what = rng.random()
    if what < 0.01:
        return rng.choice((b"[", b'{"a":', b'[{"x":')) * 50_000
    made = valid if what < 0.05 else changed(rng, valid) if what < 0.8 else value(rng)
    content = bytearray(json.dumps(made).encode())
    if rng.random() < 0.2 and content:
        for _ in range(rng.randrange(1, 4)):
            content[rng.randrange(len(content))] = rng.randrange(256)
    return bytes(content[: rng.randrange(len(content) + 1)] if rng.random() < 0.1 else content)
