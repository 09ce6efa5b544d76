# SPDX-License-Identifier: Apache-2.0
"""Which vector instructions Inductor may use: asked once for the compile child and the training process.

Inductor asks before its first compile in a process: each question compiles a file and starts a process that imports
torch, some seconds during which training would stand still. The child answers them, the training process adopts that.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from unittest import mock

_answers: dict[str, bool] = {}


def found() -> dict[str, bool]:
    """The answers of this process, for another one on the same machine with the same compiler."""
    return dict(_answers)


def adopt(answers: Mapping[str, bool]) -> None:
    """Takes over what another process has `found`."""
    _answers.update(answers)


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Inside, Inductor asks each question once per machine."""
    from torch._inductor.cpu_vec_isa import VecISA

    ask = VecISA.check_build

    def answer(isa: VecISA, code: str) -> bool:
        question = hashlib.sha256(f"{isa}:{isa.build_arch_flags()}:{code}".encode()).hexdigest()[:24]
        if question not in _answers:
            _answers[question] = ask(isa, code)
        return _answers[question]

    with mock.patch.object(VecISA, "check_build", answer):
        yield
