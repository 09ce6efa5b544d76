# SPDX-License-Identifier: Apache-2.0
"""Every published architecture trains on real data and has a case."""

from __future__ import annotations

import math

import pytest

from agspeed.reporting import parts
from benchmarks import architectures, cases, workloads
from benchmarks.measure import candidates

pytestmark = pytest.mark.usefixtures("one_thread")


def test_cases_are_the_architectures() -> None:
    assert [case["name"] for case in cases.select([], "published")] == architectures.names()


def test_an_unknown_architecture_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown architecture 'timm/alexnet'; known: .*timm/swin"):
        workloads.load("timm/alexnet")


@pytest.mark.slow
@pytest.mark.parametrize("name", architectures.names())
def test_it_trains(name: str) -> None:
    training = workloads.load(name).build()
    before = [p.detach().clone() for p in training.modules["model"].parameters()]
    losses = [float(training.step(batch)) for batch in training.batches[:2]]
    after = training.modules["model"].parameters()
    print(f"{name}: losses {losses}")
    assert all(map(math.isfinite, losses))
    assert any(not a.equal(b) for a, b in zip(before, after, strict=True))


def test_lost_backends_are_listed_by_region() -> None:
    ready = parts.candidate("native", state="chosen")
    lost = parts.candidate("inductor", state="failed", reason="no compiler")
    report = {"regions": [parts.region("region 3", candidates=[ready, lost])]}
    assert candidates.lost_backends([report]) == {"inductor": ["region 3 failed: no compiler"]}
