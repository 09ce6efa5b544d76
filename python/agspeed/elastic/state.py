# SPDX-License-Identifier: Apache-2.0
"""The values from which training continues when its processes change: a model, an optimizer, and others.

The state is live: nothing is copied. Each process keeps what it has, and `take_over` sends the newest state to the
others. A loss strikes while ranks communicate, so their states differ by one step at most.

Threading: the training's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from agspeed.cluster import report_progress
from agspeed.devices.placement import is_sharded, module_tensors
from agspeed.elastic import control
from agspeed.elastic.attachments import attached, put_attached
from agspeed.elastic.goodput import Goodput
from agspeed.errors import UserError
from agspeed.transfer import objects, optimizer_state

__all__ = ["ChangeInterrupt", "State"]

_TENSOR = "agspeed tensor number"


class ChangeInterrupt(Exception):  # noqa: N818  it is not an error
    """Raised by `State.advance` when the processes of the job change. `elastic.run` handles it."""


class State:
    """The training's state. Each argument becomes an attribute, and attributes may be assigned.

    Modules, optimizers, and other objects with state_dict() and load_state_dict() are sent by their state. Other values
    are sent themselves: None, bool, int, float, str, bytes, list, tuple, set, dict and tensors.

    Attributes:
        num_steps: how often `advance` was called in the whole training.
        goodput: counters of lost steps and of changes (`Goodput`).
    """

    def __init__(self, **values: Any) -> None:
        for name in values:
            if name.startswith("_") or name in ("goodput", "num_steps") or hasattr(State, name):
                raise UserError(f"State({name}=...): the name is taken; choose another one.")
        self.num_steps = 0
        self.goodput = Goodput()
        self._names = list(values)
        self._callbacks: list[Callable[[int, int], None]] = []
        self._has_stepped = False  # since the last `take_over`
        self._num_steps_in_all: int | None = None
        vars(self).update(values)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def on_change(self, callback: Callable[[int, int], None]) -> None:
        """Calls callback(old size, new size) in all processes when their number has changed, after the state was sent.

        Use it to adapt a learning rate or a batch size.
        """
        self._callbacks.append(callback)

    def report_progress(self, num_steps: int) -> None:
        """From now on, `advance` shows the progress in the status of this job's TrainJob.

        The status gets what `agspeed.cluster.report_progress` says of steps, and counters of `goodput` as metrics:
        membership_epochs, interrupted_steps and change_seconds.

        Args:
            num_steps: how many steps the training has in all.

        Raises:
            UserError: num_steps is below 1.
        """
        if num_steps < 1:
            raise UserError(f"num_steps: {num_steps} is below 1; pass how many steps the training has in all.")
        self._num_steps_in_all = num_steps

    def advance(self) -> None:
        """Call it right after each step of the optimizer, before ranks communicate again.

        Raises:
            ChangeInterrupt: processes are to join or leave. Let it pass through to `elastic.run`.
            UserError: a model is sharded over ranks.
        """
        if not self._has_stepped:
            self._refuse_sharded()
            self._has_stepped = True
            self.goodput.note_first_step()
        self.num_steps += 1
        if self._num_steps_in_all is not None:
            report_progress(self.num_steps, self._num_steps_in_all, metrics=self.goodput.metrics())
        connection = control.of_this_process()
        if connection is not None and connection.wants_change:
            raise ChangeInterrupt

    def size_changed(self, old: int, new: int) -> None:
        for callback in self._callbacks:
            callback(old, new)

    def take_over(self, source: int) -> None:
        """Gives all ranks of the default group the state of rank `source`.

        Raises:
            UserError: a model is sharded over ranks.
            UserTypeError: a value cannot be sent. It comes at the source, and DistBackendError at the others.
        """
        self._refuse_sharded()
        self._has_stepped = False
        is_source = distributed.get_rank() == source
        modules = self._modules()
        tensors: list[torch.Tensor] = []
        skeleton = None
        if is_source:
            values = {name: _state_of(getattr(self, name)) for name in self._names}
            counters = [self.num_steps, self.goodput.num_lost, self.goodput.change_seconds]
            skeleton = _without_tensors({"values": values, "counters": counters}, tensors)
            skeleton["attached"] = attached(modules)
        skeleton, kinds = _broadcast_object(
            (skeleton, [(each.dtype, tuple(each.shape), each.device.type) for each in tensors]), source
        )
        received = []
        for number, (dtype, shape, device) in enumerate(kinds):
            tensor = tensors[number] if is_source else torch.empty(shape, dtype=dtype, device=_device(device))
            distributed.broadcast(tensor, source)
            received.append(tensor)
        if not is_source:
            found = _with_tensors(skeleton, received)
            for name in self._names:
                self._put(name, found["values"][name])
            self.num_steps, num_lost, change_seconds = found["counters"]
            self.goodput.take_over(num_lost, change_seconds)
        put_attached(modules, skeleton["attached"])

    def _modules(self) -> dict[str, torch.nn.Module]:
        return {name: value for name in self._names if isinstance(value := getattr(self, name), torch.nn.Module)}

    def _refuse_sharded(self) -> None:
        """Raises: UserError if a model is sharded over ranks, because a lost process would take its part along."""
        for name, model in self._modules().items():
            if any(map(is_sharded, module_tensors(model))):
                raise UserError(
                    f"State({name}=...): the model is sharded over ranks (DTensor), by fully_shard or tensor "
                    "parallelism, and a process that is lost takes its part along; wrap the whole model in "
                    "DistributedDataParallel, or train the sharded one without elastic.run, from checkpoints."
                )

    def _put(self, name: str, value: Any) -> None:
        own = getattr(self, name)
        if isinstance(own, torch.optim.Optimizer):
            optimizer_state.put(own, value)
        elif _has_state(own):
            own.load_state_dict(value)
        else:
            setattr(self, name, value)


def _has_state(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _state_of(value: Any) -> Any:
    return value.state_dict() if _has_state(value) else value


def _device(kind: str) -> torch.device:
    return torch.device(kind) if kind == "cpu" else torch.device(kind, torch.accelerator.current_device_index())


def _broadcast_object(value: Any, source: int) -> Any:
    raw = objects.encode(value) if distributed.get_rank() == source else b""
    size = torch.tensor([len(raw)])
    distributed.broadcast(size, source)
    data = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(int(size), dtype=torch.uint8)
    distributed.broadcast(data, source)
    return objects.decode(data.numpy().tobytes())


def _without_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Returns the value with its tensors moved to the list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach().contiguous())
        return {_TENSOR: len(tensors) - 1}
    if isinstance(value, dict):
        return {key: _without_tensors(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_without_tensors(each, tensors) for each in value)
    return value


def _with_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {key: _with_tensors(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_tensors(each, tensors) for each in value)
    return value
