# SPDX-License-Identifier: Apache-2.0
"""elastic.Sampler: whatever the number of processes does, each index comes at least once per epoch of the data."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agspeed import elastic
from agspeed.elastic import sampler as sampler_module


def as_rank(patch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    group = SimpleNamespace(is_initialized=lambda: True, get_rank=lambda: rank, get_world_size=lambda: size)
    patch.setattr(sampler_module, "distributed", group)


@given(
    st.integers(0, 60),
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), max_size=4),
    st.booleans(),
    st.integers(1, 4),
)
def test_each_index_comes_at_least_once(
    num_indices: int, phases: list[tuple[int, int]], shuffle: bool, batch: int
) -> None:
    """phases: the number of processes, and how many batches each of them takes before the number changes."""
    seen: list[int] = []
    state = {"epoch": 2, "num_processed": 0}
    for size, num_batches in [*phases, (3, 1000)]:
        samplers = []
        for rank in range(size):
            with pytest.MonkeyPatch.context() as patch:
                as_rank(patch, rank, size)
                own = elastic.Sampler(range(num_indices), shuffle=shuffle, seed=7)
                own.load_state_dict(state)
                indices = list(own)
                assert len(own) == len(indices)
                seen += indices[: num_batches * batch]
                own.record(min(len(indices), num_batches * batch))
                samplers.append(own.state_dict())
        assert all(each == samplers[0] for each in samplers)
        state = samplers[0]
    assert set(seen) == set(range(num_indices))
    assert len(seen) <= num_indices + 4 * (len(phases) + 1), "only the last batch is filled up"


def test_another_epoch_has_another_order() -> None:
    own = elastic.Sampler(range(20))
    first = list(own)
    own.record(20)
    assert list(own) == []
    own.set_epoch(1)
    assert sorted(own) == sorted(first) == list(range(20)) and list(own) != first
