# SPDX-License-Identifier: Apache-2.0
"""Finds out once, for the compile child and the training process, which vector instructions Inductor may use.

Before its first compile in a process, Inductor tests for each instruction set of the processor whether a file compiles
and loads with it. Each test starts a process that imports torch, which takes seconds during which training would stand
still. This module makes the test load torch's libraries without its Python part. If a file works with wide vectors, it
skips the test with narrower ones. The compile child runs the tests, and the training process adopts the answers.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from agspeed.torch_compat import inductor

_answers: dict[str, bool] = {}
_LOAD = """
import ctypes
try:
    for path in {libraries!r}:
        ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    ctypes.CDLL("__lib_path__")
except OSError:
    import torch
    ctypes.CDLL("__lib_path__")
"""
_LIBRARIES = ("libc10.so", "libtorch_cpu.so")


def found() -> dict[str, bool]:
    """Returns this process's answers, for another process on the same machine with the same compiler."""
    return dict(_answers)


def adopt(answers: Mapping[str, bool]) -> None:
    """Adopts the answers that another process has `found`."""
    _answers.update(answers)


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Makes Inductor use known answers inside the block, and records new ones."""
    ask = inductor.VecISA.check_build
    widest: dict[str, int] = {}

    def answer(isa: inductor.VecISA, code: str) -> bool:
        question = hashlib.sha256(f"{isa}:{isa.build_arch_flags()}:{code}".encode()).hexdigest()[:24]
        if question not in _answers:
            is_implied = isa.bit_width() <= widest.get(code, 0)
            _answers[question] = is_implied or ask(isa, code)
        if _answers[question]:
            widest[code] = max(widest.get(code, 0), isa.bit_width())
        return _answers[question]

    home = Path(torch.__file__).parent / "lib"
    load = _LOAD.format(libraries=[str(home / name) for name in _LIBRARIES])
    with inductor.asking(answer, load):
        yield
