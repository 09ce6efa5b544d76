# SPDX-License-Identifier: Apache-2.0
"""Prepares the streams to which every subcommand prints: a terminal, a pipe whose reader may close it, a file with a
small character set, or a closed stream."""

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
        raise BrokenPipeError  # for `main`; rich would end the process with code 1


def make_console() -> Console:
    """Returns a console for standard output: as wide as the terminal, or 120 columns in a pipe or file."""
    return _Console() if sys.stdout.isatty() else _Console(width=_PIPED_WIDTH, soft_wrap=False)


def prepare_streams() -> None:
    """Call this first. Reopens standard streams that the caller has closed, on /dev/null: their output is dropped, and
    no other file gets their descriptors. Makes streams replace characters that they lack."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free descriptor, this one
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "r" if descriptor == 0 else "w"))
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) in _STRICT and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=fmt.PLAIN)


def finish_streams() -> None:
    """Call this last. Flushes the streams and drops output that a stream does not accept: otherwise Python would try
    again at exit and print an error."""
    streams: tuple[Any, ...] = (sys.stdout, sys.stderr)
    for stream in streams:
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
