# SPDX-License-Identifier: Apache-2.0
"""A candidate that chose another memory layout for its outputs is repaired, and checked in its repaired form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import fx

from agspeed.backends import CompileOptions
from agspeed.backends.ambient import AmbientModes
from agspeed.backends.base import Candidate, Runner
from agspeed.regions.layouts import LaidOut
from agspeed.tuning import build as building
from agspeed.tuning.gate import check as gate

Outputs = tuple[torch.Tensor, ...]


def right(x: torch.Tensor) -> Outputs:
    return x.sin(), x * 2


def other_layout(x: torch.Tensor) -> Outputs:
    return x.sin().contiguous(memory_format=torch.channels_last), x * 2


def other_layout_and_numbers(x: torch.Tensor) -> Outputs:
    return x.cos().contiguous(memory_format=torch.channels_last), x * 2


def an_image() -> torch.Tensor:
    return torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)


def test_other_strides_are_refused_and_can_be_mended() -> None:
    verdict = gate.check(other_layout, right, [an_image()])
    assert verdict.outcome == "rejected"
    assert verdict.layouts == {0: [0, 1, 2, 3]}
    mended = gate.check(LaidOut(other_layout, verdict.layouts), right, [an_image()])
    assert mended.accepted, mended.reason
    assert mended.gradients


def test_a_channels_last_layout_of_eagers_can_be_mended() -> None:
    image = an_image().detach()[:, :, :, :1].contiguous(memory_format=torch.channels_last)
    verdict = gate.check(lambda x: (x.sin().contiguous(),), lambda x: (x.sin(),), [image])
    mended = gate.check(LaidOut(lambda x: (x.sin().contiguous(),), verdict.layouts), lambda x: (x.sin(),), [image])
    assert mended.accepted, mended.reason


@pytest.mark.parametrize(
    "candidate",
    [
        lambda x: (x.sin()[..., :2].contiguous(memory_format=torch.channels_last), x * 2),
        lambda x: (*other_layout(x), x),
        lambda x: (other_layout(x)[0], x),
        right,
    ],
    ids=["another shape", "one output more", "an input as output", "no difference"],
)
def test_other_differences_are_not_mended(candidate: Any) -> None:
    assert gate.check(candidate, right, [an_image()]).layouts == {}


def test_memory_with_gaps_is_not_imitated() -> None:
    def with_gaps(x: torch.Tensor) -> Outputs:
        return (torch.empty_strided((2, 3), (8, 1)).copy_(x[0, 0, :2, :3]),)

    verdict = gate.check(lambda x: (x[0, 0, :2, :3].clone(),), with_gaps, [an_image().detach()])
    assert verdict.outcome == "rejected" and verdict.layouts == {}


class Captured:
    """A captured region for `build`."""

    def __init__(self) -> None:
        self.gm = fx.symbolic_trace(right)
        self.example_inputs: list[Any] = [an_image()]
        self.modes = AmbientModes.capture()
        self.sample: list[Any] | None = [an_image()]
        self.other_sizes: list[Any] = []
        self.where = ""
        self.proofs: dict[str, Any] = {}


@pytest.mark.parametrize(("function", "state"), [(other_layout, "ready"), (other_layout_and_numbers, "rejected")])
def test_build_mends_layouts_and_checks_again(function: Runner, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Chosen(Candidate):
        name = "chosen"

        def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions) -> Runner:
            return function

    monkeypatch.setattr(building, "candidate", lambda name: Chosen())
    outcome = building.build("chosen", Captured(), CompileOptions(num_threads=1))
    assert outcome.state == state, outcome.reason
    if outcome.runner is not None:
        assert outcome.runner(an_image())[0].is_contiguous()
    else:
        assert "output 0" in outcome.reason and outcome.gate["forward"]["worst"] == "output 0"
