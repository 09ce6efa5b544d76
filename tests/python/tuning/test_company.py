# SPDX-License-Identifier: Apache-2.0
"""How long a rank that tunes on its own makes the others wait."""

from __future__ import annotations

import datetime

import pytest

from agspeed import config
from agspeed.distributed import exchange, stall_limit
from agspeed.tuning import company


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(company, "world_size", lambda: 2)
    for module in (exchange, stall_limit):
        monkeypatch.setattr(module, "timeout_of", lambda _: datetime.timedelta(seconds=20))


def test_a_rank_alone_stands_still_for_a_part_of_the_collectives_time() -> None:
    found = company.stall_limit(config.resolve({"mode": "max"}), None)
    assert found is not None and found.longest_wait_s == pytest.approx(8)
    assert found.why_too_slow(7.9) is None
    assert found.why_too_slow(9) == (
        "a part of compiling or checking it took 9.0 s: training may stand still for 8.0 s where collectives run out "
        "of time after 20 s"
    )


def test_what_runs_does_not_depend_on_time_where_it_must_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert company.stall_limit(config.resolve({"mode": "deterministic"}), None) is None
    monkeypatch.setattr(company, "world_size", lambda: 1)
    assert company.stall_limit(config.resolve({"mode": "max"}), None) is None, "no rank waits"
