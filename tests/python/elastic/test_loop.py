# SPDX-License-Identifier: Apache-2.0
"""The group of an epoch."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from agspeed.distributed import groups, local_steps
from agspeed.elastic import loop
from agspeed.errors import UserError
from agspeed.membership.messages import Place


def test_local_steps_are_refused_in_the_group_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "0")  # restored after the test
    monkeypatch.setattr(loop, "_BACKEND", "gloo")
    place = Place(
        number=1, rank=0, size=1, source=0, has_lost=False, local_rank=0, local_size=1, cross_rank=0, cross_size=1
    )
    model = torch.nn.Linear(2, 2)
    with (
        loop._group(place, dist.HashStore()),  # type: ignore[arg-type]
        pytest.raises(UserError, match="local_steps does not work in an elastic job"),
    ):
        local_steps(model, torch.optim.SGD(model.parameters()), every=2, warmup=0)
    assert not groups.membership_changes
