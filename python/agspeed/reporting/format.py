# SPDX-License-Identifier: Apache-2.0
"""Numbers and places as people read them; shared by the terminal, the HTML page and the comparison."""

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
"""An error handler of codecs: writes what a character set lacks with characters of ASCII."""
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
    """A step time in the unit that suits it."""
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
    """Bytes in binary units."""
    if value is None:
        return MISSING
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TiB"


def ratio(value: float | None) -> str:
    """A speed-up: 1.31×."""
    if value is None:
        return MISSING
    return f"{value:.3f}×" if 0.9 < value < 1.1 else f"{value:.2f}×"


def interval(value: Mapping[str, Any] | None) -> str:
    """An interval of ratios: 1.28–1.34×."""
    if value is None:
        return MISSING
    return f"{ratio(value['low'])[:-1]}–{ratio(value['high'])}"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share == 0 or share >= 0.0995 else f"{share * 100:.1f} %"


def error(value: float | str | None) -> str:
    """An error against fp64; "nan" and "inf" stay words."""
    if value is None:
        return MISSING
    return value if isinstance(value, str) else f"{value:.1e}"


def count(value: int | None) -> str:
    return MISSING if value is None else f"{value:,}"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def location(place: Mapping[str, Any] | None) -> str:
    """file:line, with the function where it is known."""
    if place is None:
        return MISSING
    where = f"{place['file']}:{place['line']}"
    return f"{where} in {place['function']}" if place["function"] else where


def state(candidate: Mapping[str, Any]) -> str:
    """The state in words that need no legend."""
    if candidate["name"] == "eager" and candidate["state"] == "slower":
        return "reference"
    return "too much memory" if candidate["state"] == "memory" else str(candidate["state"])


def step_time(candidate: Mapping[str, Any]) -> str:
    """What a step of it takes; marked where only cold steps were timed."""
    return milliseconds(candidate["step_ms"]) + (" cold" if candidate["cold"] else "")


def is_folded(plan: Mapping[str, Any]) -> bool:
    """Whether a plan stands in a fold: its regions run with different candidates, and it was not chosen."""
    return "+r" in plan["name"] and plan["state"] != "chosen"


def plan(name: str) -> str:
    """A plan by what differs: "inductor+r2:native" runs region 2 with native and all others with inductor."""
    base, *swaps = name.split("+r")
    return ", ".join([base, *(f"region {swap.replace(':', ': ', 1)}" for swap in swaps)])


def encodable(text: str, encoding: str | None) -> str:
    """The same text in characters that the encoding (None: UTF-8) has."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, PLAIN).decode(encoding)


def printable(value: Any) -> Any:
    """The same JSON value with characters spelled out that show nothing by themselves but steer a terminal or turn the
    direction of text, so that no name can change how others look."""
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
