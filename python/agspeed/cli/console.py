# SPDX-License-Identifier: Apache-2.0
"""The streams that every subcommand prints to, whatever they are: a terminal, a pipe whose reader may leave, a file of
a small character set, none at all."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from rich.console import Console

from agspeed.reporting import format as fmt

__all__ = ["finish_streams", "make_console", "prepare_streams"]

_PIPED_WIDTH = 120
_STRICT = ("backslashreplace", "strict", "surrogateescape")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # to `main`; rich would end the process with 1


def make_console() -> Console:
    """Standard output: as wide as the terminal, or 120 columns in a pipe or file, which have no width."""
    return _Console() if sys.stdout.isatty() else _Console(width=_PIPED_WIDTH, soft_wrap=False)


def prepare_streams() -> None:
    """To be called first. Gives the process the standard streams that its caller has closed: what goes there is
    dropped, and no file gets their number. Characters that a stream lacks are replaced."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest number that is free
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "r" if descriptor == 0 else "w"))
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) in _STRICT and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=fmt.PLAIN)


def finish_streams() -> None:
    """To be called last. What a stream does not take is dropped: Python would try again at exit, and complain."""
    streams: tuple[Any, ...] = (sys.stdout, sys.stderr)
    for stream in streams:
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
