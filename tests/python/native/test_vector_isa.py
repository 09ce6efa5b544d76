# SPDX-License-Identifier: Apache-2.0
"""Questions about vector instructions are asked once: a process that adopts another one's answers asks none."""

from __future__ import annotations

import pytest
from torch._inductor.cpu_vec_isa import VecAVX2, VecISA

from agspeed.backends import vector_isa


def test_an_adopted_answer_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(vector_isa, "_answers", {})
    monkeypatch.setattr(VecISA, "check_build", lambda isa, code: asked.append(code) or code == "good")
    with vector_isa.remembering():
        assert VecAVX2().check_build("good") and not VecAVX2().check_build("bad")
    assert asked == ["good", "bad"]
    answers = vector_isa.found()
    monkeypatch.setattr(vector_isa, "_answers", {})
    vector_isa.adopt(answers)
    with vector_isa.remembering():
        assert VecAVX2().check_build("good") and not VecAVX2().check_build("bad")
    assert asked == ["good", "bad"]


def test_torch_asks_for_itself_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_isa, "_answers", {})
    untouched = VecISA.check_build
    with vector_isa.remembering():
        assert VecISA.check_build is not untouched
    assert VecISA.check_build is untouched
