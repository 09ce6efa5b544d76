# SPDX-License-Identifier: Apache-2.0
"""Formats numbers and places for people. The terminal, the HTML page and the comparison use these functions."""

from __future__ import annotations

import codecs
import unicodedata
from collections.abc import Mapping
from typing import Any

__all__ = [
    "PLAIN",
    "count",
    "encodable",
    "error",
    "interval",
    "is_folded",
    "location",
    "milliseconds",
    "percent",
    "plan",
    "plural",
    "printable",
    "ratio",
    "seconds",
    "size",
    "state",
    "step_time",
]

MISSING = "–"
PLAIN = "agspeed.plain"
"""A codecs error handler that replaces characters missing in an encoding by ASCII characters."""
_PLAIN_CHARACTERS = {
    "·": "-",
    "µ": "u",
    "×": "x",
    "÷": "/",
    "–": "-",
    "…": "...",
    "→": "->",
    "━": "=",
    "╌": "-",
    "✓": "+",
    "✗": "x",
}


def milliseconds(value: float | None) -> str:
    """Formats a step time in a suitable unit."""
    if value is None:
        return MISSING
    if value == 0:
        return "0 ms"
    if value < 0.9995:
        return f"{_three_digits(value * 1000)} µs"
    return f"{_three_digits(value)} ms" if value < 999.5 else f"{_three_digits(value / 1000)} s"


def seconds(value: float | None) -> str:
    if value is None:
        return MISSING
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 99.5:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def size(value: float | None) -> str:
    """Formats bytes in binary units."""
    if value is None:
        return MISSING
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TiB"


def ratio(value: float | None) -> str:
    """Formats a speed-up: 1.31×."""
    if value is None:
        return MISSING
    return f"{value:.3f}×" if 0.9 < value < 1.1 else f"{value:.2f}×"


def interval(value: Mapping[str, Any] | None) -> str:
    """Formats an interval of ratios: 1.28–1.34×."""
    if value is None:
        return MISSING
    return f"{ratio(value['low'])[:-1]}–{ratio(value['high'])}"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share == 0 or share >= 0.0995 else f"{share * 100:.1f} %"


def error(value: float | str | None) -> str:
    """Formats an error against fp64; "nan" and "inf" stay words."""
    if value is None:
        return MISSING
    return value if isinstance(value, str) else f"{value:.1e}"


def count(value: int | None) -> str:
    return MISSING if value is None else f"{value:,}"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def location(place: Mapping[str, Any] | None) -> str:
    """Formats a place as file:line, with the function if it is known."""
    if place is None:
        return MISSING
    where = f"{place['file']}:{place['line']}"
    return f"{where} in {place['function']}" if place["function"] else where


def state(candidate: Mapping[str, Any]) -> str:
    """Returns a candidate's state in words that need no legend."""
    if candidate["name"] == "eager" and candidate["state"] == "slower":
        return "reference"
    return "too much memory" if candidate["state"] == "memory" else str(candidate["state"])


def step_time(candidate: Mapping[str, Any]) -> str:
    """Formats a candidate's step time, marked "cold" if only its first steps were timed."""
    return milliseconds(candidate["step_ms"]) + (" cold" if candidate["cold"] else "")


def is_folded(plan: Mapping[str, Any]) -> bool:
    """Returns whether a plan is shown folded: its regions run different candidates, and it was not chosen."""
    return "+r" in plan["name"] and plan["state"] != "chosen"


def plan(name: str) -> str:
    """Formats a plan's name: "inductor+r2:native", which runs region 2 with native and all other regions with inductor,
    becomes "inductor, region 2: native"."""
    base, *swaps = name.split("+r")
    return ", ".join([base, *(f"region {swap.replace(':', ': ', 1)}" for swap in swaps)])


def encodable(text: str, encoding: str | None) -> str:
    """Returns the text with characters that the encoding (None: UTF-8) lacks replaced."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, PLAIN).decode(encoding)


def printable(value: Any) -> Any:
    """Returns the same JSON value with invisible characters escaped that control a terminal or change the direction of
    text, so that no name can change the look of other text."""
    if isinstance(value, str):
        return "".join(character if _is_harmless(character) else ascii(character)[1:-1] for character in value)
    if isinstance(value, Mapping):
        return {printable(key): printable(inner) for key, inner in value.items()}
    return [printable(inner) for inner in value] if isinstance(value, list) else value


def _is_harmless(character: str) -> bool:
    return character == "\n" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    return _PLAIN_CHARACTERS.get(character, ascii(character)[1:-1]), error.start + 1


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{decimals}f}"


codecs.register_error(PLAIN, _plain)
