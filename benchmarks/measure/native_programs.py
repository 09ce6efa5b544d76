# SPDX-License-Identifier: Apache-2.0
"""The instructions of native regions, with the reason why each call is a call, for `step_shares`.

`recorded` makes the compiler write the result of each pass, and puts a range of the profiler around each call of a
native region. The graph after the last pass has the instructions in order. The reasons follow from its effects and from
the import table of this checkout: the compiler does not keep the messages with which rows of the table refuse a call.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from agspeed import native
from benchmarks.measure.gemm_share import is_product
from benchmarks.measure.step_shares import REGION, Call, Kernel, Program

_TABLE = Path(__file__).resolve().parents[2] / "compiler" / "import" / "op_table.def"
_ROW = re.compile(r'^AG_(?:EXPRESSION|BUILDER)\("([^"]+)"', re.M)
_CALL = re.compile(r'^  (?:.+ = )?call "([^"]+)"\((.*)\)([^()]*?)(?: : (.+?))?(?: @".*")?$')
_KERNEL = re.compile(r"^  .+ = kernel \d+\(")
_NUMBER = re.compile(r"-(\d+)-")


@dataclass
class Recording:
    """What `recorded` finds. Only the thread that trains may change it while regions run."""

    folder: Path
    is_profiling: bool = False
    """Ranges are made only while this is True."""
    num_executables: int = 0
    errors: list[str] = field(default_factory=list)

    def programs(self) -> list[Program]:
        """Returns the program of each direction of each compiled region. Raises: OSError."""
        rows = table_rows()
        found = []
        for folder in sorted(self.folder.iterdir()):
            last: dict[str, Path] = {}
            for path in sorted(folder.glob("*.ag"), key=_number):
                if path.read_text(encoding="utf-8").startswith("graph"):  # the plans of later stages have no graph
                    last[path.name.partition("-")[0]] = path
            found += [parse(path.read_text(encoding="utf-8"), rows) for path in last.values()]
        return found


def _number(path: Path) -> int:
    found = _NUMBER.search(path.name)
    return int(found[1]) if found else -1


@contextmanager
def recorded(folder: Path) -> Iterator[Recording]:
    """Records all regions that are compiled inside the block, in subfolders of `folder`. Not for several threads.

    Raises: RuntimeError if the native extension is missing.
    """
    extension: Any = native.load()
    if extension is None:
        raise RuntimeError(native.why_missing())
    recording = Recording(folder)
    compile_entries, make_region = extension.compile, extension.Region

    def compile_and_write(entries: dict[str, str], options: dict[str, Any], constants: Any) -> Any:
        own = folder / f"{recording.num_executables:04}"
        own.mkdir(parents=True)
        recording.num_executables += 1
        return compile_entries(entries, options | {"dump_dir": str(own)}, constants)

    def make_with_range(code: Any, signature: Any) -> Callable[..., Any]:
        region = make_region(code, signature)
        return _with_range(region, recording) if isinstance(code, extension.Executable) else region

    extension.compile, extension.Region = compile_and_write, make_with_range
    try:
        yield recording
    finally:
        extension.compile, extension.Region = compile_entries, make_region


def _with_range(region: Callable[..., Any], recording: Recording) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        if not recording.is_profiling:
            return region(*args)
        with torch.profiler.record_function(REGION):
            return region(*args)

    return run


def table_rows() -> frozenset[str]:
    """Returns the operators that have a row in the import table. Raises: OSError."""
    return frozenset(_ROW.findall(_TABLE.read_text(encoding="utf-8")))


def parse(graph: str, rows: frozenset[str]) -> list[Call | Kernel]:
    """Reads the text of a graph (compiler/graph/print.cpp) after all passes. `rows`: see `table_rows`."""
    program: list[Call | Kernel] = []
    for line in graph.splitlines():
        if _KERNEL.match(line):
            program.append(Kernel())
        elif found := _CALL.match(line):
            operator, _, effects, result = found.groups()
            program.append(_call(operator, effects.split(), result or "", rows))
    return program


def _call(operator: str, effects: Sequence[str], result: str, rows: frozenset[str]) -> Call:
    if is_product("::".join(operator.split(".")[:2])):
        return Call(operator, "a library computes it", result, is_product=True)
    if "random" in effects:
        return Call(operator, "it draws random numbers in eager's order", result)
    if "view" in effects or "alias" in effects:
        return Call(operator, "a call or an output needs the view", result)
    if "opaque" in effects:
        return Call(operator, "its effects are unknown to the compiler", result)
    if operator in rows:
        return Call(operator, "its native form does not fit types, sizes, strides or source", result)
    return Call(operator, "it has no native form", result)
