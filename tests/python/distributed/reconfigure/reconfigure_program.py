# SPDX-License-Identifier: Apache-2.0
"""A process of `test_reconfigure.py`: it trains in a group that loses a member, and that a new process joins later.

    python reconfigure_program.py FOLDER NAME PORT

The processes "a", "b" and "c" begin. "c" ends without a word while the others make step 4. These two go on until step
8, and then make a group with "d". Each step uses the same samples, whatever the size of the group is. At the end, a
process writes its weights to FOLDER/NAME.pt. PORT is a TCPStore's.
"""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import agspeed  # noqa: F401  registers the backend

NUM_STEPS, LOST_AT, JOINED_AT = 12, 4, 8
_SAMPLES_PER_STEP = 12  # for 1, 2 and 3 ranks
_TIMEOUT = datetime.timedelta(seconds=300)


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int, size: int) -> None:
    """Makes one step with this rank's part of the samples."""
    samples = torch.randn(_SAMPLES_PER_STEP, 8, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    optimizer.zero_grad()
    model(samples[rank::size]).square().mean().backward()
    optimizer.step()


class _Member:
    """This process in its groups."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.store = distributed.TCPStore("127.0.0.1", port, is_master=False, timeout=_TIMEOUT)
        self.model, self.optimizer = make()
        self.step = 0
        first_rank = {"a": 0, "b": 1, "c": 2, "d": 2}[name]
        distributed.init_process_group(
            "agspeed", store=self.store, rank=first_rank, world_size=3, timeout=_TIMEOUT, enable_reconfigure=True
        )
        self.store.set(f"handle/{name}", distributed._get_reconfigure_handle())

    def regroup(self, uuid: int, names: str) -> None:
        handles = [self.store.get(f"handle/{each}").decode() for each in names]
        distributed._reconfigure(uuid, handles).wait()
        assert (distributed.get_rank(), distributed.get_world_size()) == (names.index(self.name), len(names))

    def train_until(self, end: int) -> None:
        """Trains until step `end`, or until a member is lost."""
        wrapped = DistributedDataParallel(self.model)
        while self.step < end:
            if self.step == LOST_AT:
                self._lose_one()
            try:
                train(wrapped, self.optimizer, self.step, distributed.get_rank(), distributed.get_world_size())
            except distributed.DistBackendError:
                return
            self.step += 1

    def take_over(self) -> None:
        """Gives all members the state of rank 0."""
        state = [self.model.state_dict(), self.optimizer.state_dict(), self.step]
        distributed.broadcast_object_list(state, 0)
        self.model.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])
        self.step = state[2]

    def _lose_one(self) -> None:
        """Ends "c" once the others are at this step, too."""
        if self.name == "c":
            self.store.wait(["at/a", "at/b"])
            os._exit(9)
        self.store.set(f"at/{self.name}", "")


def main(folder: Path, name: str, port: int) -> None:
    torch.set_num_threads(1)
    member = _Member(name, port)
    if name != "d":
        member.regroup(1, "abc")
        member.train_until(JOINED_AT)
        assert member.step == LOST_AT, member.step
        member.regroup(2, "ab")
        member.train_until(JOINED_AT)
    member.regroup(3, "abd")
    member.take_over()
    assert member.step == JOINED_AT, member.step
    member.train_until(NUM_STEPS)
    torch.save(member.model.state_dict(), folder / f"{name}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
