# SPDX-License-Identifier: Apache-2.0
"""Regions that ranks compile after their common decision do not make the other ranks wait for too long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agspeed.regions.outcome import Outcome
from agspeed.tuning import deferred_regions
from agspeed.tuning.deferred_regions import DeferredRegions

_LONGEST_S = 8.0


class Session:
    """A session in which each part of a compile takes `part_s`."""

    def __init__(self, part_s: float, is_in_group: bool) -> None:
        self.settings, self.options = SimpleNamespace(mode="auto"), None
        self.now, self.adopted, self._part_s = 0.0, [], part_s
        self.rank_sync = SimpleNamespace(connection=SimpleNamespace(stall_limit=self)) if is_in_group else None
        self.longest_wait_s = _LONGEST_S

    def why_too_slow(self, seconds: float) -> str | None:
        return f"it took {seconds:g} s" if seconds > _LONGEST_S else None

    def candidate_for(self, region: Any) -> str:
        return "native"

    def compile_part(self, plan: str, region: Any) -> Outcome | None:
        if plan in region.outcomes:
            return region.outcomes[plan]
        self.now += self._part_s
        region.num_parts -= 1
        if region.num_parts > 0:
            return None
        region.outcomes[plan] = Outcome(plan, "ready")
        return region.outcomes[plan]

    def adopt_region(self, region: Any) -> None:
        self.adopted.append(region)


class Region:
    def __init__(self, index: int, num_parts: int, key: str = "") -> None:
        self.index, self.num_parts, self.key = index, num_parts, key
        self.outcomes: dict[str, Outcome] = {}
        self.unfinished: dict[str, Any] = {}


def advanced(session: Session, regions: list[Region], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns how long training stood still at the end of each step, until nothing was left to do."""
    monkeypatch.setattr(deferred_regions.time, "perf_counter", lambda: session.now)
    deferred = DeferredRegions(session)  # type: ignore[arg-type]
    for region in regions:
        deferred.add(region)
    stops = []
    while not deferred.is_idle:
        begun = session.now
        deferred.advance()
        stops.append(session.now - begun)
    return stops


def test_a_rank_of_a_group_spreads_its_compiles_over_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    session, regions = Session(3.0, is_in_group=True), [Region(0, 4), Region(1, 1)]
    stops = advanced(session, regions, monkeypatch)
    assert sum(stops) == 5 * 3.0 and max(stops) < 2 * _LONGEST_S
    assert session.adopted == regions
    assert all(region.outcomes["native"].state == "ready" for region in regions)


def test_alone_all_of_it_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(3.0, is_in_group=False)
    assert advanced(session, [Region(0, 4), Region(1, 1)], monkeypatch) == [5 * 3.0]


def test_what_others_cannot_wait_for_is_left_to_eager_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    session, regions = Session(9.0, is_in_group=True), [Region(0, 3), Region(1, 1)]
    assert advanced(session, regions, monkeypatch) == [9.0, 9.0]
    assert session.adopted == regions
    given_up, ready = (region.outcomes["native"] for region in regions)
    assert (given_up.state, given_up.reason) == ("skipped", "it took 9 s")
    assert ready.state == "ready", "nothing of it was left to do"


@pytest.mark.parametrize(("num_graphs", "state"), [(1, "ready"), (40, "skipped")])
def test_many_units_of_one_graph_are_no_many_graphs(
    monkeypatch: pytest.MonkeyPatch, num_graphs: int, state: str
) -> None:
    session, regions = Session(0.0, is_in_group=True), [Region(i, 1, str(i % num_graphs)) for i in range(40)]
    advanced(session, regions, monkeypatch)
    assert {region.outcomes["native"].state for region in regions} == {state}
