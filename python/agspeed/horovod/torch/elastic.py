# SPDX-License-Identifier: Apache-2.0
"""The state, sampler and loop of elastic training under Horovod's names: commit, restore, synchronize.

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0, batch=0)

    @hvd.elastic.run
    def train(state): ...

A state holds its arguments: modules, optimizers and samplers by their state_dict(), other values directly. commit()
copies them, restore() goes back to the copy, and sync() gives one rank's values to all ranks. That is rank 0, or, after
a change of an elastic job, a rank with the newest state.
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import torch

from agspeed.elastic import member as members
from agspeed.elastic.leaving import leaving_by_sigterm
from agspeed.elastic.member import Member
from agspeed.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from agspeed.horovod.torch import basics, functions, job
from agspeed.transfer import optimizer_state

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
        member = members.of_this_process()
        if member is not None:
            member.note_step(_progress(self))
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises: HostsUpdatedInterrupt if ranks are to join or leave, which never happens in jobs of a fixed size."""
        member = members.of_this_process()
        if member is not None and member.wants_change:
            raise HostsUpdatedInterrupt

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        """Adapts the state to changed ranks."""


class ObjectState(State):
    """A state of values that can be sent (transfer/objects.py); each value is an attribute.

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
            values = self._bcast_object({name: getattr(self, name) for name in self._names}, _root(), "elastic.state")
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
                functions.broadcast_parameters(value.state_dict(), _root())
            elif isinstance(value, torch.optim.Optimizer):
                functions.broadcast_optimizer_state(value, _root())
            else:
                # The weights come from the same rank. Another one may have counted a batch that they have not seen.
                value.load_state_dict(functions.broadcast_object(value.state_dict(), _root(), f"elastic.{name}"))
        super().sync()

    def reset(self) -> None:
        for name in self._saved_states:
            if isinstance(value := getattr(self, name), ElasticSampler):
                value.reset()


def _root() -> int:
    """The rank whose state all ranks get: one with the newest state, and in a job of a fixed size rank 0."""
    member = members.of_this_process()
    return 0 if member is None or member.place is None else member.place.source


def _progress(state: State, *, is_newest: bool = False) -> int:
    """How far a member has come: ranks that were interrupted between commits are ahead of ranks that were restored."""
    return 2 * state.num_commits + is_newest


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
    """Makes func(state, ...) start with the same state at all ranks, and continue from the last commit after a failure.

    A failure is a collective that raises HorovodInternalError. In an elastic job (flag `--min-np`), the other ranks
    go on without a rank that is lost, and ranks that join take the state over. In a job of a fixed size, the loss of a
    rank reaches the caller. A failure that repeats without a commit in between always reaches the caller, because
    it would repeat for ever.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        member = members.of_this_process()
        call = functools.partial(func, state, *args, **kwargs)
        if member is None:
            return _Loop(state).run(call)
        with leaving_by_sigterm(member.connection):
            return _ElasticLoop(state, member).run(call)

    return wrapper


class _Loop:
    """Training in a job of a fixed size."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._last_failure: tuple[str, int] | None = None

    def run(self, call: Callable[[], Any]) -> Any:
        has_to_sync = True
        while True:
            try:
                if has_to_sync:
                    self._sync()
                result = call()
                if self._is_done():
                    return result
                has_to_sync = True
            except HorovodInternalError as error:
                self._note_failure(error)
                self._state.restore()
                has_to_sync = True
            except HostsUpdatedInterrupt as interrupt:
                has_to_sync = self._note_interrupt(interrupt)
            self._begin_again()
            self._state.on_reset()

    def _sync(self) -> None:
        self._state.sync()

    def _is_done(self) -> bool:
        return True

    def _note_interrupt(self, interrupt: HostsUpdatedInterrupt) -> bool:
        """Called when hosts change, and the state has not been restored. Returns: whether the ranks synchronize it."""
        return not interrupt.skip_sync

    def _note_failure(self, error: HorovodInternalError) -> None:
        """Raises: the error, if training cannot go on."""
        failure = (str(error), self._state.num_commits)
        if " is lost" in str(error) or failure == self._last_failure:
            raise error
        self._last_failure = failure

    def _begin_again(self) -> None:
        basics.shutdown()
        basics.init()


class _ElasticLoop(_Loop):
    """Training in an elastic job."""

    def __init__(self, state: State, member: Member) -> None:
        super().__init__(state)
        self._member = member

    def _sync(self) -> None:
        job.current().is_early = False
        self._state.sync()
        self._state.num_commits = functions.broadcast_object(self._state.num_commits, _root(), "elastic.num_commits")
        self._member.begin(_progress(self._state))

    def _is_done(self) -> bool:
        self._note_newest()
        return self._member.finish()

    def _note_interrupt(self, interrupt: HostsUpdatedInterrupt) -> bool:
        self._note_newest()
        return True  # all ranks do the same: the others may have no state yet

    def _note_newest(self) -> None:
        self._state.save()  # for a failure before the state has been synchronized
        self._member.note_step(_progress(self._state, is_newest=True))

    def _note_failure(self, error: HorovodInternalError) -> None:
        self._member.note_loss(error)

    def _begin_again(self) -> None:
        while True:
            basics.shutdown()
            self._member.wait_for_place()
            try:
                return basics.init()
            except RuntimeError as error:  # a rank was lost before all had met
                self._member.note_loss(error)
