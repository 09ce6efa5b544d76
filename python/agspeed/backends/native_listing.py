# SPDX-License-Identifier: Apache-2.0
"""Shows the code of a native region as text, for reports: its instructions, and the operations of its kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agspeed._native import Executable, Instruction

__all__ = ["listing"]


def listing(executable: Executable, entries: Iterable[str]) -> str:
    """Returns the instructions of the entries in order, each with the FX nodes that it came from, and the kernels."""
    return "\n".join(_lines(executable, entries)) + "\n"


def _lines(executable: Executable, entries: Iterable[str]) -> Iterator[str]:
    for entry in entries:
        yield entry
        yield from map(_instruction, executable.instructions(entry))
    for kernel in executable.kernels():
        yield ""
        yield kernel["name"]
        yield kernel["text"].rstrip()


def _instruction(instruction: Instruction) -> str:
    match instruction["kind"]:
        case "kernel":
            return f"  kernel {instruction['name']}  # {instruction['origin']}"
        case "call":
            made = f" -> {instruction['results']}" if instruction["results"] else ""
            reason = f"; a call because {instruction['reason']}" if instruction["reason"] else ""
            return f"  call {instruction['name']}{made}  # {instruction['origin']}{reason}"
        case _:
            return "  gradients are ready"
