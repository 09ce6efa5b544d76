# SPDX-License-Identifier: Apache-2.0
"""Training that the captured graphs follow is never taken for training that they do not follow."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import agspeed
from agspeed import native
from benchmarks import architectures, workloads
from tests.python.frontend.shadow.trainers import TRAINERS, adversarial, mixed_precision, optimized, sharpness_aware

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]
NUM_STEPS = int(os.environ.get("AG_TEST_STEPS", "2000"))
_SHORT = 70  # in make test
_SEED = 11
_WITHOUT_COMPARISON = {"transformers/deberta_v2", "transformers/reformer"}
"""Architectures whose forward runs Python between its graphs, so that no step can be made twice."""


def _check(model: Any, num_steps: int, is_compared: bool = True) -> None:
    """Asserts that captured code ran, and that the model was compared ever more rarely without a finding.

    is_compared: False: asserts that the report has the reason for which there was no comparison.
    """
    report = agspeed.report(model).to_dict()
    found = report["comparison"]
    shown = f"seed {_SEED}, {num_steps} steps, {report['decision']['chosen']}: {found}"
    print(shown)
    assert found["difference"] is None and (found["obstacle"] is None) == is_compared, shown
    assert report["decision"]["chosen"] in ("native", "aot"), f"{shown} {report['decision']}"
    assert not is_compared or 2 * found["steps"] >= math.log2(num_steps), shown


@pytest.mark.thorough
@pytest.mark.parametrize("name", architectures.names())
def test_architectures_are_found_equal(name: str) -> None:
    training = workloads.load(name).build()
    model = optimized(training.modules["model"])
    for step in range(NUM_STEPS):
        loss = training.step(training.batches[step % len(training.batches)])
    assert torch.isfinite(loss)
    _check(model, NUM_STEPS, is_compared=name not in _WITHOUT_COMPARISON)


def _train(trainer: Callable[[int], list[nn.Module]], num_steps: int) -> None:
    if trainer.__name__.startswith("lightning"):
        pytest.importorskip("lightning")
    torch.manual_seed(_SEED)
    for model in trainer(num_steps):
        _check(model, num_steps)


@pytest.mark.parametrize("trainer", [mixed_precision, sharpness_aware, adversarial])
def test_short_training_is_found_equal(trainer: Callable[[int], list[nn.Module]]) -> None:
    _train(trainer, _SHORT)


@pytest.mark.thorough
@pytest.mark.parametrize("trainer", TRAINERS)
def test_trainers_are_found_equal(trainer: Callable[[int], list[nn.Module]]) -> None:
    _train(trainer, NUM_STEPS)
