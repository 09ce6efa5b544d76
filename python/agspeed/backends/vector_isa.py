# SPDX-License-Identifier: Apache-2.0
"""Which vector instructions Inductor may use: asked once for the compile child and the training process.

Inductor asks before its first compile in a process, for each set of instructions that the processor has: does a file
compile and load with them? Each question starts a process that imports torch, some seconds during which training would
stand still. Here torch's libraries are loaded without Python's part of it, and a file that does with wide vectors is
not tried with narrower ones. The child answers, the training process adopts that.
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
    """The answers of this process, for another one on the same machine with the same compiler."""
    return dict(_answers)


def adopt(answers: Mapping[str, bool]) -> None:
    """Takes over what another process has `found`."""
    _answers.update(answers)


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Inside, Inductor asks each question once per machine."""
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
