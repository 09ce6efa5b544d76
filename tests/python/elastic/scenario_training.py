# SPDX-License-Identifier: Apache-2.0
"""The training of a scenario (`scenarios.py`), under Horovod's API or under DistributedDataParallel.

Arguments: "horovod" or "ddp", the scenario, how ranks fail ("exit" or "SIGKILL"), and a folder. Each step uses the same
samples, whatever the number of ranks is. So if no sample is left out and no step is counted twice, the weights at the
end equal the weights of one process (`alone`), except for the rounding of sums.

Each member writes to FOLDER/members/PID, one line at a time: "epoch NUMBER RANK SIZE STEP" when it begins to train in a
group, and "done" at the end, after it has saved its weights in FOLDER/members/PID.pt.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import agspeed.horovod.torch as hvd
from agspeed import elastic
from agspeed.elastic import member as members
from tests.python.elastic.scenarios import (
    NUM_STEPS,
    SCENARIOS,
    AfterLeaving,
    EarlyOperation,
    Failure,
    Hosts,
    Terminate,
    Wait,
)

_SAMPLES_PER_STEP = 12  # for 1, 2, 3 and 4 ranks
_NUM_SAMPLES = 48
_PAUSE_S = 0.01
_TIMEOUT_S = 240
_SEED = 1


def alone() -> dict[str, torch.Tensor]:
    """Returns the weights at the end, of the training in this process alone."""
    model, optimizer = _make(_SEED)
    sampler = elastic.Sampler(_SAMPLES)
    step = 0
    while step < NUM_STEPS:
        for indices in _batches(sampler, 1):
            _train(model, optimizer, indices)
            step += 1
        sampler.set_epoch(sampler.epoch + 1)
    return model.state_dict()


_SAMPLES = torch.randn(_NUM_SAMPLES, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def _make(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double()
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def _batches(sampler: torch.utils.data.Sampler[int], size: int) -> Iterator[list[int]]:
    """Yields the indices of each batch. size: the number of ranks."""
    indices, length = list(sampler), _SAMPLES_PER_STEP // size
    for begin in range(0, len(indices), length):
        yield indices[begin : begin + length]


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, indices: Sequence[int]) -> None:
    optimizer.zero_grad()
    model(_SAMPLES[indices]).square().mean().backward()
    optimizer.step()


class _Member:
    """This process, and what happens to it.

    Attributes:
        num_epochs: how many groups it has trained in.
    """

    def __init__(self, name: str, way: str, folder: Path) -> None:
        self._scenario, self._way, self._folder = SCENARIOS[name], way, folder
        self._notes = folder / "members"
        self.num_epochs = 0

    def seed(self) -> int:
        """Returns the seed of the weights at the begin. Only the weights of the first rank 0 matter."""
        is_first_slot = os.environ["LOCAL_RANK"] == "0"
        is_first_host = os.environ["HOROVOD_HOSTNAME"] == self._scenario.hosts[0].partition(":")[0]
        is_first = is_first_slot and is_first_host and not (self._notes / "begun").exists()
        return _SEED if is_first else os.getpid()

    def begin(self, rank: int, size: int, step: int) -> None:
        (self._notes / "begun").touch()
        found = members.of_this_process()
        assert found is not None and found.place is not None
        self._rank, self._size = rank, size
        self.num_epochs += 1
        self._say("epoch", found.place.number, rank, size, step)

    def before(self, step: int) -> None:
        """Lets the events of a step happen."""
        time.sleep(_PAUSE_S)
        for number, event in enumerate(self._scenario.events):
            match event:
                case Failure(at, ranks) if at == step and self._rank in ranks and self._is_first(number):
                    self._fail()
                case Terminate(at, rank) if at == step and self._rank == rank and self._is_first(number):
                    os.kill(os.getpid(), signal.SIGTERM)
                case Hosts(at, hosts) if at == step and self._rank == 0 and self._is_first(number):
                    write_hosts(self._folder, hosts)
                    self._wait_for_change()
                case Wait(at, size) if at == step and self._rank == 0 and self._size < size:
                    self._wait_for_change()

    def is_early(self) -> bool:
        return EarlyOperation() in self._scenario.events

    def has_left(self) -> None:
        for event in self._scenario.events:
            if isinstance(event, AfterLeaving):
                write_hosts(self._folder, event.hosts)

    def end(self, model: nn.Module) -> None:
        torch.save(model.state_dict(), self._notes / f"{os.getpid()}.pt")
        self._say("done")

    def _is_first(self, number: int) -> bool:
        """Whether this event has not happened to this rank yet."""
        try:
            (self._notes / f"event{number}.{self._rank}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _fail(self) -> None:
        if self._way == "exit":
            raise RuntimeError(f"rank {self._rank} fails")
        os.kill(os.getpid(), signal.SIGKILL)

    def _wait_for_change(self) -> None:
        found = members.of_this_process()
        assert found is not None
        until = time.monotonic() + _TIMEOUT_S
        while not found.wants_change:
            assert time.monotonic() < until, "no other group is to be made"
            time.sleep(0.01)

    def _say(self, *words: object) -> None:
        with (self._notes / str(os.getpid())).open("a") as file:
            print(*words, file=file)


def write_hosts(folder: Path, hosts: Sequence[str]) -> None:
    draft = folder / f"draft.{os.getpid()}"
    draft.write_text("".join(f"{host}\n" for host in hosts))
    draft.rename(folder / "hosts")


def _by_horovod(member: _Member) -> nn.Module:
    """The training commits every other step, and looks for other hosts in each one."""
    hvd.init()
    model, inner = _make(member.seed())
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(_SAMPLES)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, step=0)
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(state.step)])
    if member.is_early():
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        member.begin(hvd.rank(), hvd.size(), state.step)
        assert len(resets) >= member.num_epochs - 1, "the callbacks run before each other group trains"
        while state.step < NUM_STEPS:
            for number, indices in enumerate(_batches(state.sampler, hvd.size())):
                member.before(state.step)
                _train(state.model, state.optimizer, indices)
                state.sampler.record_batch(number, len(indices))
                state.step += 1
                if state.step % 2 == 0:
                    state.commit()
                else:
                    state.check_host_updates()
            state.sampler.set_epoch(state.sampler.epoch + 1)
            state.commit()

    train(state)
    return model


class _Trainer:
    """Holds the wrapper of one group, with a hook, in a cycle of references, as trainers of frameworks do."""

    def __init__(self, model: nn.Module) -> None:
        self.num_buckets = 0
        self.wrapped = DistributedDataParallel(model)
        # torch refuses hooks with postponed annotations, and a lambda has none.
        self.wrapped.register_comm_hook(self, lambda trainer, bucket: trainer.reduce(bucket))

    def reduce(self, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self.num_buckets += 1
        return default_hooks.allreduce_hook(None, bucket)


def _by_ddp(member: _Member) -> nn.Module:
    model, optimizer = _make(member.seed())
    state = elastic.State(model=model, optimizer=optimizer, sampler=elastic.Sampler(_SAMPLES))

    @elastic.run
    def train(state: elastic.State) -> None:
        trainer = _Trainer(state.model)
        num_steps = 0
        size = distributed.get_world_size()
        member.begin(distributed.get_rank(), size, state.num_steps)
        while state.num_steps < NUM_STEPS:
            for indices in _batches(state.sampler, size):
                member.before(state.num_steps)
                _train(trainer.wrapped, state.optimizer, indices)
                num_steps += 1
                assert trainer.num_buckets == num_steps, "the hook runs for the one bucket of each step"
                state.sampler.record(len(indices))
                state.advance()
            state.sampler.set_epoch(state.sampler.epoch + 1)

    train(state)
    return model


def main() -> None:
    face, name, way, folder = sys.argv[1:]
    torch.set_num_threads(1)
    member = _Member(name, way, Path(folder))
    try:
        model = {"horovod": _by_horovod, "ddp": _by_ddp}[face](member)
    except SystemExit:
        member.has_left()
        raise
    member.end(model)


if __name__ == "__main__":
    main()
