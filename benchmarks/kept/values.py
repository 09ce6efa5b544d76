# SPDX-License-Identifier: Apache-2.0
"""Values of kept results, and templates that show them. Pure.

A template is a text with fields in braces, as of `str.format`: `{agspeed:.2f}`, `{agspeed.low:.3f}`, `{rows[1].ms}`.
The format of a field is Python's format of a number, with these differences:

- Without a format, a number has the digits that it has in its file.
- `s3` has three significant digits and no exponent, and `bytes` a size like "64 MiB".
- A percent sign follows a space, and a negative number has a minus sign instead of a hyphen.
- A figure with an interval is shown as "1.20 (1.19 to 1.21)", a span as "0.98 to 1.02", a missing value as "-".
- The elements of a list are separated by ", ", or by " / " if the format ends with " /". In lists within a list it is
  the other way round.
"""

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from benchmarks import markdown
from benchmarks.comm import sizes
from benchmarks.measure.statistics import geometric_mean


@dataclass(frozen=True)
class Span:
    """The least and the greatest of several numbers."""

    low: float
    high: float


@dataclass(frozen=True)
class Figure:
    """A number, with the ends of its interval where these are known."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> Span | None:
        return None if self.low is None or self.high is None else Span(self.low, self.high)


@dataclass(frozen=True)
class Column:
    """The figures of all rows under one name."""

    figures: Sequence[Figure]

    @property
    def mean(self) -> Figure:
        """The geometric mean, because the figures are ratios."""
        return Figure(geometric_mean(figure.value for figure in self.figures))

    @property
    def lowest(self) -> Figure:
        return Figure(min(figure.value for figure in self.figures))

    @property
    def highest(self) -> Figure:
        return Figure(max(figure.value for figure in self.figures))


def read(value: Any) -> Any:
    """Returns a value of a JSON file as a template sees it."""
    if isinstance(value, list):
        return [read(each) for each in value]
    if isinstance(value, Mapping):
        return Figure(value["value"], value.get("low"), value.get("high")) if "value" in value else Span(**value)
    return Figure(value) if isinstance(value, int | float) else value


def expand(template: str, names: Mapping[str, Any]) -> str:
    """Fills in the fields of a template. Raises ValueError with the name that is missing, or with the bad field."""
    try:
        return _Formatter().vformat(template, (), names)
    except KeyError as error:
        raise ValueError(f"lacks {error.args[0]}") from error
    except AttributeError as error:
        is_missing = isinstance(error.obj, SimpleNamespace)
        raise ValueError(f"lacks {error.name}" if is_missing else f"does not fit: {error}") from error
    except (IndexError, TypeError, ValueError) as error:
        raise ValueError(f"does not fit: {error}") from error


def show(value: Any, spec: str = "") -> str:
    """Returns the value as text."""
    if value is None:
        return "-"
    if isinstance(value, list):
        separators, inner = (" / ", ", "), spec.removesuffix(" /")
        separator, other = separators if spec.endswith(" /") else separators[::-1]
        return separator.join(show(each, inner + " /" * (other == " / ")) for each in value)
    spec = spec.removesuffix(" /")
    if isinstance(value, Column):
        value = Span(value.lowest.value, value.highest.value)
    if isinstance(value, Span):
        return f"{_number(value.low, spec).removesuffix(' %')} to {_number(value.high, spec)}"
    if isinstance(value, Figure):
        return markdown.interval(vars(value), lambda each: _number(each, spec))
    return _number(value, spec) if isinstance(value, int | float) else format(value, spec)


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        return show(value, format_spec)


def _number(value: float, spec: str) -> str:
    if spec == "bytes":
        return sizes.show(int(value))
    if spec.startswith("s"):
        return f"{value:.{max(0, int(spec[1:]) - 1 - math.floor(math.log10(abs(value))))}f}"
    text = format(value, spec)
    return (f"{text[:-1]} %" if spec.endswith("%") else text).replace("-", "−")
