# SPDX-License-Identifier: Apache-2.0
"""The flags of `agspeed cluster render`: one per field that an engine uses. They override the file of --file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agspeed.cluster.engines import Engine
from agspeed.cluster.job import FIELDS, Job, read
from agspeed.errors import UserError

__all__ = ["add_to", "choices_of", "job_of"]

_NUMBERS = ("gpus", "max_replicas", "min_replicas", "replicas", "slots", "ssh_port", "user_id")
_SWITCHES = ("host_network", "ipc_lock")
_PAIRS = ("annotations", "env")
_SINGULAR = {"annotations": "annotation"}


def add_to(parser: argparse.ArgumentParser, engine: Engine) -> None:
    """Adds the flags of an engine, and the command behind them."""
    parser.add_argument("--file", type=Path, metavar="FILE", help="TOML with the same fields; flags override it")
    for flag, (values, default, text) in engine.choices.items():
        parser.add_argument(f"--{flag}", choices=values, default=default, help=text)
    for field in FIELDS:
        if field.name not in engine.fields or field.name == "command":
            continue
        flag = f"--{_SINGULAR.get(field.name, field.name).replace('_', '-')}"
        text = field.metadata["help"]
        if field.name in _SWITCHES:
            parser.add_argument(flag, action="store_const", const=True, dest=field.name, help=text)
            continue
        kind: Any = {"action": "append"} if field.name in _PAIRS else {"type": int} if field.name in _NUMBERS else {}
        parser.add_argument(flag, metavar=field.metadata["metavar"], dest=field.name, help=text, **kind)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND ...", help="the command that every rank runs"
    )


def job_of(arguments: argparse.Namespace, engine: Engine) -> Job:
    """Returns the job. Raises: UserError, which names the wrong field."""
    given: dict[str, Any] = {} if arguments.file is None else read(arguments.file)
    for field in FIELDS:
        value = _command(arguments.command) if field.name == "command" else getattr(arguments, field.name, None)
        if value is None or field.name not in engine.fields:
            continue
        given[field.name] = _pairs(field.name, value) if field.name in _PAIRS else value
    return Job(**given)


def choices_of(arguments: argparse.Namespace, engine: Engine) -> dict[str, Any]:
    """Returns the engine's choices."""
    return {flag: getattr(arguments, flag.replace("-", "_")) for flag in engine.choices}


def _command(words: Sequence[str]) -> list[str] | None:
    return list(words[1:] if words[:1] == ["--"] else words) or None


def _pairs(name: str, texts: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise UserError(f"{name}: {text[:60]!r} has no value; write NAME=VALUE.")
        pairs[key] = value
    return pairs
