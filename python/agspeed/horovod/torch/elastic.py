# SPDX-License-Identifier: Apache-2.0
"""The state, sampler and loop of elastic training, for jobs of a fixed size: commit, restore, synchronize.

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0, batch=0)

    @hvd.elastic.run
    def train(state): ...

A state holds its arguments: modules, optimizers and samplers by their state_dict(), other values directly. commit()
copies them, restore() goes back to the copy, and sync() gives rank 0's values to all ranks.
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import torch

from agspeed.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from agspeed.horovod.torch import basics, functions, job, optimizer_state

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]


class State:
    """The state from which training continues. Subclasses save it, restore it and synchronize it over the ranks."""

    def __init__(self) -> None:
        self._reset_callbacks: list[Callable[[], None]] = []
        self.num_commits = 0
        """Commits so far. `run` uses it to tell whether training advances between two failures."""

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Adds functions that on_reset() calls after the ranks have changed and before sync()."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called when the ranks have changed."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: int, update_res: int) -> None:
        """Called when hosts have changed, which never happens in jobs of a fixed size."""

    def commit(self) -> None:
        """Saves the state, then checks whether hosts have changed."""
        self.save()
        self.num_commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises: HostsUpdatedInterrupt if hosts have changed, which never happens in jobs of a fixed size."""

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        """Adapts the state to changed ranks."""


class ObjectState(State):
    """A state of values that can be sent (objects.py); each value is an attribute.

    bcast_object, get_rank: functions like hvd.broadcast_object and hvd.rank.
    """

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__()
        self._bcast_object, self._get_rank = bcast_object, get_rank
        self._names = list(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._saved: dict[str, Any] = {}
        self.save()

    def save(self) -> None:
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._names}

    def restore(self) -> None:
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self) -> None:
        if self._names:
            values = self._bcast_object({name: getattr(self, name) for name in self._names}, 0, "elastic.state")
            for name, value in values.items():
                setattr(self, name, value)
        self.save()


class TorchState(ObjectState):
    """A state of a model, an optimizer, samplers and other values."""

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        given = {"model": model, "optimizer": optimizer} | kwargs
        held = {name: value for name, value in given.items() if _has_state(value)}
        self._saved_states: dict[str, Any] = dict.fromkeys(held)
        vars(self).update(held)
        others = {name: value for name, value in kwargs.items() if name not in held}
        super().__init__(functions.broadcast_object, basics.rank, **others)

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute. A new model, optimizer or sampler in place of an old one is saved at once."""
        super().__setattr__(name, value)
        if name in vars(self).get("_saved_states", ()):
            self._saved_states[name] = copy.deepcopy(value.state_dict())

    def save(self) -> None:
        super().save()
        for name in self._saved_states:
            self._saved_states[name] = copy.deepcopy(getattr(self, name).state_dict())

    def restore(self) -> None:
        super().restore()
        for name, saved in self._saved_states.items():
            value = getattr(self, name)
            if isinstance(value, torch.optim.Optimizer):
                optimizer_state.put(value, copy.deepcopy(saved))
            else:
                value.load_state_dict(copy.deepcopy(saved))

    def sync(self) -> None:
        for name in self._saved_states:
            value = getattr(self, name)
            if isinstance(value, torch.nn.Module):
                functions.broadcast_parameters(value.state_dict(), 0)
            elif isinstance(value, torch.optim.Optimizer):
                functions.broadcast_optimizer_state(value, 0)
            else:
                self._sync_sampler(name, value)
        super().sync()

    def reset(self) -> None:
        for name in self._saved_states:
            if isinstance(value := getattr(self, name), ElasticSampler):
                value.reset()

    def _sync_sampler(self, name: str, sampler: Any) -> None:
        """Gives all ranks the state of the rank that has counted the most samples, in the latest epoch."""
        states = functions.allgather_object(sampler.state_dict(), f"elastic.{name}")
        sampler.load_state_dict(max(states, key=lambda state: (state["epoch"], state["processed_num"])))


def _has_state(value: Any) -> bool:
    return isinstance(value, (torch.nn.Module, torch.optim.Optimizer, ElasticSampler))


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Distributes the unprocessed indices of an epoch over the ranks.

    Call record_batch() after each batch, and set_epoch() at the end of an epoch.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch, self.processed_num = 0, 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Notes that every rank has processed a batch of this size."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Distributes the unprocessed indices over the current ranks."""
        where = job.current().where
        self.num_replicas, self.rank = where.size, where.rank
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        left = indices[self.processed_num :]
        self.num_samples = -(-len(left) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        while left and len(left) < self.total_size:
            left += left[: self.total_size - len(left)]
        self.indices = left[self.rank :: self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Makes func(state, ...) start with rank 0's state at all ranks, and continue from the last commit after a failure.

    A failure is a collective that raises HorovodInternalError. Two kinds of failures reach the caller: the loss of a
    rank, because a job of a fixed size cannot replace it, and a failure that repeats without a commit in between,
    because it would repeat for ever.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        has_to_sync = True
        last_failure: tuple[str, int] | None = None
        while True:
            try:
                if has_to_sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError as error:
                failure = (str(error), state.num_commits)
                if " is lost" in str(error) or failure == last_failure:
                    raise
                last_failure = failure
                state.restore()
                has_to_sync = True
            except HostsUpdatedInterrupt as interrupt:
                has_to_sync = not interrupt.skip_sync
            basics.shutdown()
            basics.init()
            state.on_reset()

    return wrapper
