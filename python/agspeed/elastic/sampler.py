# SPDX-License-Identifier: Apache-2.0
"""Distributes the indices of a dataset over processes whose number changes: each index at least once per epoch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized

import torch
from torch import distributed

__all__ = ["Sampler"]


class Sampler(torch.utils.data.Sampler[int]):
    """The indices that this process has still to process in an epoch of the data. Keep it in the `State`.

        sampler = elastic.Sampler(dataset)
        for batch in DataLoader(dataset, batch_size=8, sampler=sampler):
            ...
            sampler.record(8)
            state.advance()
        sampler.set_epoch(sampler.epoch + 1)

    After a change of the processes, a new iterator gives the indices that no step has used. A step that was lost is
    repeated. So an index comes twice only if it fills up the last batch, as DistributedSampler does it.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch, self.num_processed = 0, 0

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch of the data, in another order if `shuffle` is set."""
        self.epoch, self.num_processed = epoch, 0

    def record(self, num_indices: int) -> None:
        """Notes how many indices each process has used. Call it in each step, before `State.advance`."""
        self.num_processed += num_indices * _size()

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "num_processed": self.num_processed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.num_processed = state["epoch"], state["num_processed"]

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices())

    def __len__(self) -> int:
        return -(-max(0, len(self.dataset) - self.num_processed) // _size())

    def _indices(self) -> list[int]:
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        left = indices[self.num_processed :]
        while left and len(left) % _size():
            left += left[: _size() - len(left) % _size()]
        rank = distributed.get_rank() if distributed.is_initialized() else 0
        return left[rank :: _size()]


def _size() -> int:
    return distributed.get_world_size() if distributed.is_initialized() else 1
