# SPDX-License-Identifier: Apache-2.0
"""Loads the templates and assets of all HTML pages of agspeed from this folder.

A page is one file: it inlines everything and requests nothing. Templates escape every value, and a misspelt name in a
template is an error.
"""

from __future__ import annotations

import functools
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from agspeed.reporting import format as fmt

__all__ = ["asset", "template"]

_FOLDER = Path(__file__).parent


def template(name: str) -> Template:
    return _environment().get_template(name)


@functools.cache
def asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["fmt"] = fmt
    return environment
