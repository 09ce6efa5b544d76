# SPDX-License-Identifier: Apache-2.0
"""The kinds of settings: they parse text into values, check values, and format them.

A row of the table (`table.py`) is a `Setting`; its `kind` names one of the kinds here. This module does not know a
value's source: an error is a ValueError or, for a wrong type, a TypeError, and `resolve.py` makes the sentence. It
imports nothing of agspeed, because the generator of the table loads this file alone.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["Secret", "Setting", "jsonable"]

REPORT_SUFFIXES = (".json", ".html")


class Secret:
    """A text that no log, report or `repr` shows. Only `reveal` returns it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "set"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


@dataclass(frozen=True)
class Setting:
    """One row of the table; the columns are described in runtime/base/settings.toml."""

    name: str
    kind: str
    default: Any
    reader: str
    env: str
    doc: str
    choices: tuple[str, ...] = ()
    at_least: int | None = None
    at_most: int | None = None
    keyword: bool = False
    secret: bool = False
    own_file: bool = False
    env_aliases: tuple[str, ...] = ()

    @property
    def toml_key(self) -> str:
        return self.name

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that set it, in order of precedence."""
        return (self.env, *self.env_aliases)

    @property
    def goes_to_cpp(self) -> bool:
        """Whether Python passes the value to C++. It does so for process-wide settings that C++ reads."""
        return self.reader != "python" and not self.keyword

    @property
    def expects(self) -> str:
        """The end of the sentence "<name> must be ..."."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.secret:
            return f"a secret of at least {self.at_least} bytes"
        if self.kind == "integer":
            return f"a whole number from {self.at_least} to {self.at_most}"
        return _KINDS[self.kind].expects

    def parse(self, text: str) -> Any:
        """Parses the text of an environment variable. Raises: ValueError."""
        return self.check(_KINDS[self.kind].parse(text))

    def check(self, value: Any) -> Any:
        """Checks `value` and returns it in its final form. Raises: ValueError, or TypeError for a wrong type."""
        value = _KINDS[self.kind].convert(value)
        if self.choices and value not in self.choices:
            raise ValueError
        if self.kind == "integer" or self.secret:
            self._check_range(value if self.kind == "integer" else len(os.fsencode(value)))
        return Secret(value) if self.secret else value

    def _check_range(self, number: int) -> None:
        is_small = self.at_least is not None and number < self.at_least
        if is_small or (self.at_most is not None and number > self.at_most):
            raise ValueError


def jsonable(value: Any) -> Any:
    """Returns `value` in a form for JSON; a secret becomes "set"."""
    if isinstance(value, (Path, Secret)):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class _Kind:
    expects: str
    convert: Callable[[Any], Any]
    parse: Callable[[str], Any] = str.strip


_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _parse_flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE + _FALSE:
        raise ValueError(word)
    return word in _TRUE


def _parse_tristate(text: str) -> bool | str:
    return "auto" if text.strip().lower() == "auto" else _parse_flag(text)


def _parse_integer(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,19}", text.strip()):
        raise ValueError
    return int(text)


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _of_type(value: Any, *types: type) -> Any:
    """Returns `value` if it has one of the types. True and False do not count as numbers. Raises: TypeError."""
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise TypeError
    return value


def _flag(value: Any) -> bool:
    return bool(_of_type(value, bool))


def _tristate(value: Any) -> bool | None:
    return None if isinstance(value, str) and value == "auto" else _flag(value)


def _integer(value: Any) -> int:
    return int(_of_type(value, int))


def _number(value: Any) -> float:
    try:
        number = float(_of_type(value, int, float))
    except OverflowError:
        raise ValueError from None
    if not math.isfinite(number) or number < 0:
        raise ValueError
    return number


def _word(value: Any) -> str:
    return str(_of_type(value, str))


def _text(value: Any) -> str:
    text = _word(value).strip()
    if not text or "\0" in text:
        raise ValueError
    return text


def _names(value: Any) -> tuple[str, ...]:
    names = _parse_names(value) if isinstance(value, str) else tuple(_word(name) for name in value)
    if not names or not all(name.strip() for name in names):
        raise ValueError
    return tuple(dict.fromkeys(names))


def _path(value: Any) -> Path:
    if not os.fspath(_of_type(value, str, os.PathLike)) or "\0" in str(value):
        raise ValueError
    try:
        return Path(value).expanduser().absolute()
    except (OSError, RuntimeError):  # the working directory was deleted, or "~name" has no home folder
        raise ValueError from None


def _report_path(value: Any) -> Path:
    path = _path(value)
    if path.suffix.lower() not in REPORT_SUFFIXES:
        raise ValueError
    return path


_KINDS: Final[dict[str, _Kind]] = {
    "cache_folder": _Kind("the path of a directory", _path),
    "choice": _Kind("a word", _word, lambda text: text.strip().lower()),
    "flag": _Kind("true or false", _flag, _parse_flag),
    "integer": _Kind("a whole number", _integer, _parse_integer),
    "names": _Kind("a non-empty list of names", _names, _parse_names),
    "path": _Kind("the path of a file or folder", _path),
    "ratio": _Kind("a number that is not negative", _number, float),
    "report": _Kind("the path of a file that ends in .json or .html", _report_path),
    "seconds": _Kind("a number of seconds that is not negative", _number, float),
    "text": _Kind("a text", _text),
    "tristate": _Kind("true, false or auto", _tristate, _parse_tristate),
}
