# SPDX-License-Identifier: Apache-2.0
"""Masks secrets in command lines for a report: *** replaces everything that looks like a secret. Pure functions.

A secret is recognised by its name, as in --hf-token X, --password=X and db.api_key=X, or by its form: a token with a
known prefix, or user information in a URL. Numbers are not masked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["masked"]

_MASK = "***"
_WORDS = (
    r"(?i:(?:access|api|auth|private|secret)?key|auth|bearer|credentials?|pass(?:phrase|wd|word)?|pwd?|secret|token)"
)
_NAME = re.compile(rf"(?:[\w.+-]*[\d_.+-]|[\w.+-]*[a-z](?=[A-Z]))?{_WORDS}")
_NO_SECRETS = re.compile(r"[-+]?\d{0,6}(?:\.\d{0,6})?|true|false|none|null|yes|no|on|off", re.IGNORECASE)
_FORMS = (
    (re.compile(r"(?<=://)[^\s/@'\"]+(?=@)"), _MASK),
    (re.compile(r"\b(?:AIza|AKIA|gh[opsu]_|github_pat_|glpat-|hf_|sk-|xox[abprs]-)[\w-]{10,}"), _MASK),
    (re.compile(r"\beyJ[\w-]{10,}\.[\w.-]+"), _MASK),
    (re.compile(r"(?i:\b(bearer|basic)\s+)[\w.~+/=-]{8,}"), rf"\1 {_MASK}"),
    (re.compile(rf"([?&][\w.-]*{_WORDS}=)[^&#\s]+"), rf"\1{_MASK}"),
    (re.compile(rf"(\b\w*{_WORDS}[\"']?\s*[=:]\s*)([\"'])(?:(?!\2).)+\2"), rf"\1\2{_MASK}\2"),
)


def masked(words: Iterable[str]) -> list[str]:
    """Returns the words of a command line with secrets masked. Their number stays the same."""
    shown: list[str] = []
    is_secret = False  # the word before is an option that takes a secret
    for word in words:
        name, equals, value = word.partition("=")
        if is_secret and not word.startswith("-"):
            shown.append(_mask(word))
        elif equals and _NAME.fullmatch(name):
            shown.append(f"{name}={_mask(value)}")
        else:
            shown.append(_by_form(word))
        is_secret = word.startswith("-") and _NAME.fullmatch(word) is not None
    return shown


def _mask(value: str) -> str:
    return value if _NO_SECRETS.fullmatch(value) else _MASK


def _by_form(word: str) -> str:
    for form, instead in _FORMS:
        word = form.sub(instead, word)
    return word
