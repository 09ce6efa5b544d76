# SPDX-License-Identifier: Apache-2.0
"""Code that the compile child has proven is not checked again; any other code is."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx

from agspeed.backends import Candidate, CompileOptions
from agspeed.backends.ambient import AmbientModes
from agspeed.regions.layouts import LaidOut
from agspeed.regions.outcome import Outcome
from agspeed.regions.proof import Proof
from agspeed.tuning import build as building

_OPTIONS = CompileOptions(num_threads=1)


class _Wrong:
    """A runner with code "abc" that the gate would reject."""

    code_digest = "abc"

    def __call__(self, *args: torch.Tensor) -> Sequence[torch.Tensor]:
        return (args[0] + 1,)


def _region(**proofs: Proof) -> Any:
    gm = fx.symbolic_trace(lambda x: (x * 3,))
    sample = [torch.ones(3, 2)]
    return SimpleNamespace(
        gm=gm,
        example_inputs=sample,
        modes=AmbientModes.capture(),
        sample=sample,
        other_sizes=[],
        where="",
        proofs=proofs,
    )


class _WrongCandidate(Candidate):
    name = "wrong"

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions) -> Any:
        return _Wrong()


@pytest.fixture(autouse=True)
def wrong_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "candidate", lambda name: _WrongCandidate())


def test_code_without_a_proof_is_checked() -> None:
    assert building.build("inductor", _region(), _OPTIONS).state == "rejected"


def test_other_code_than_what_was_proven_is_checked() -> None:
    proof = Proof("another digest", {"verdict": "passed"}, {})
    assert building.build("inductor", _region(inductor=proof), _OPTIONS).state == "rejected"


def test_proven_code_has_the_childs_verdict() -> None:
    proof = Proof("abc", {"verdict": "passed"}, {})
    outcome = building.build("inductor", _region(inductor=proof), _OPTIONS)
    assert outcome.usable and outcome.gate == {"verdict": "passed"}


def test_outputs_that_the_child_mended_are_mended() -> None:
    sent = Proof("abc", {"verdict": "passed"}, {0: [1, 0]})
    outcome = building.build("inductor", _region(inductor=Proof.from_json(sent.to_json())), _OPTIONS)
    assert isinstance(outcome.runner, LaidOut)
    assert outcome.runner(torch.ones(3, 2))[0].stride() == (1, 3)


def test_code_without_a_digest_proves_nothing() -> None:
    assert Proof.of(Outcome("native", "ready", runner=lambda *args: args)) is None
    assert Proof.of(Outcome("inductor", "rejected", "wrong")) is None
