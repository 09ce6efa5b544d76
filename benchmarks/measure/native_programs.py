# SPDX-License-Identifier: Apache-2.0
"""The instructions of native regions, with the reason why each call is a call, for `step_shares`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agspeed import native
from benchmarks.measure.gemm_share import is_product
from benchmarks.measure.step_shares import Call, Kernel, Program

if TYPE_CHECKING:
    from agspeed._native import Executable, Instruction


@dataclass
class Recording:
    """The executables that `recorded` has seen, with the names of their entries."""

    executables: list[tuple["Executable", Sequence[str]]] = field(default_factory=list)

    def programs(self) -> list[Program]:
        """Returns the programs of all stages of all directions of all compiled regions."""
        return [
            program
            for executable, entries in self.executables
            for entry in entries
            for program in programs_of(executable.instructions(entry))
        ]


@contextmanager
def recorded() -> Iterator[Recording]:
    """Records all regions that are compiled inside the block. Not for several threads.

    Raises: RuntimeError if the native extension is missing.
    """
    extension: Any = native.load()
    if extension is None:
        raise RuntimeError(native.why_missing())
    recording, compile_entries = Recording(), extension.compile

    def compile_and_record(entries: dict[str, str], options: dict[str, Any], constants: Any) -> Any:
        executable = compile_entries(entries, options, constants)
        recording.executables.append((executable, list(entries)))
        return executable

    extension.compile = compile_and_record
    try:
        yield recording
    finally:
        extension.compile = compile_entries


def programs_of(instructions: Sequence["Instruction"]) -> list[Program]:
    """Returns the program of each stage of an entry."""
    stages: list[list[Call | Kernel]] = [[]]
    for each in instructions:
        if each["kind"] == "ready":
            stages.append([])
        elif each["kind"] == "kernel":
            stages[-1].append(Kernel(each["name"]))
        else:
            stages[-1].append(_call(each))
    return [stage for stage in stages if stage]


def _call(instruction: "Instruction") -> Call:
    operator = instruction["name"]
    if is_product("::".join(operator.split(".")[:2])):
        return Call(operator, "a library computes it", instruction["results"], is_product=True)
    return Call(operator, instruction["reason"], instruction["results"])
