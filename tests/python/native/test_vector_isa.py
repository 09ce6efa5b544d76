# SPDX-License-Identifier: Apache-2.0
"""Vector instructions are probed once: a process that takes over another process's answers probes none."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch._inductor.cpu_vec_isa import VecAVX2, VecAVX512, VecISA

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


def test_what_does_with_wide_vectors_is_not_tried_with_narrower_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(vector_isa, "_answers", {})
    monkeypatch.setattr(VecISA, "check_build", lambda isa, code: asked.append(f"{isa} {code}") or code == "good")
    with vector_isa.remembering():
        assert VecAVX512().check_build("good") and VecAVX2().check_build("good")
        assert not VecAVX512().check_build("bad") and not VecAVX2().check_build("bad")
    assert asked == ["avx512 good", "avx512 bad", "avx2 bad"]
    assert len(vector_isa.found()) == 4, "another process asks nothing"


@pytest.mark.slow
@pytest.mark.parametrize("libraries", [vector_isa._LIBRARIES, ("missing.so",)], ids=["quickly", "as torch does"])
def test_a_question_is_answered_by_the_compiler(
    libraries: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(vector_isa, "_answers", {})
    monkeypatch.setattr(vector_isa, "_LIBRARIES", libraries)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with vector_isa.remembering():
        assert VecAVX2().check_build('extern "C" void nothing() {}')
        assert not VecAVX2().check_build("no C++")
        assert not VecAVX2().check_build('extern "C" void unknown(); void* needed = (void*)&unknown;')


def test_torch_asks_for_itself_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_isa, "_answers", {})
    untouched = VecISA.check_build
    with vector_isa.remembering():
        assert VecISA.check_build is not untouched
    assert VecISA.check_build is untouched
