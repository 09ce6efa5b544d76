# SPDX-License-Identifier: Apache-2.0
"""With torch.distributed in use, every rank tunes on its own; a warning, the status and the report say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

import agspeed
from tests.python.support.small_models import FAST, mlp, steps

_NOTE = "each of the 4 ranks tunes on its own"


@pytest.fixture
def four_ranks() -> Iterator[None]:
    """Makes this process rank 0 of four. The other ranks are simulated."""
    distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    distributed.destroy_process_group()


def _trained(tmp_path: Path, **keywords: Any) -> torch.nn.Module:
    model = agspeed.optimize(mlp(), cache_dir=tmp_path, **keywords)
    steps(model, 5)
    return model


@pytest.mark.usefixtures("four_ranks")
def test_ranks_that_tune_on_their_own_warn_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    models = [_trained(tmp_path, mode="max", backends=["graph-eager"]) for _ in range(2)]
    assert caplog.text.count(_NOTE) == 1
    assert 'mode="deterministic" takes no timing' in caplog.text
    for model in models:
        assert _NOTE in agspeed.status(model).reason
        assert _NOTE in agspeed.report(model).to_dict()["decision"]["why"]


@pytest.mark.usefixtures("four_ranks")
def test_decision_says_that_it_is_this_ranks_own(tmp_path: Path) -> None:
    model = _trained(tmp_path, mode="max", backends=["eager"])
    assert agspeed.status(model) == "eager"
    assert _NOTE in agspeed.report(model).to_dict()["decision"]["why"]


@pytest.mark.usefixtures("four_ranks")
def test_fixed_order_needs_no_agreement(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = _trained(tmp_path, **FAST)
    assert "ranks" not in caplog.text + agspeed.status(model).reason


def test_one_process_is_no_rank(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = _trained(tmp_path, mode="max", backends=["graph-eager"])
    assert "ranks" not in caplog.text + agspeed.status(model).reason
