# SPDX-License-Identifier: Apache-2.0
"""Finds the device of a target's tensors: the CPU, one CUDA device, or a placement that agspeed leaves to eager.

A session has one *home*: the device of its target's parameters or first inputs. If any tensor is on another device, the
session stays eager, with the reason from `why_eager`. Tensors without dimensions may be on the CPU, because torch's own
operators accept them there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

CPU = torch.device("cpu")
TIMED_DEVICES = {"cpu", "cuda"}
"""The types of devices on which steps can be timed and metered."""

_SHARDED = (
    "its parameters are sharded (DTensor), by fully_shard or a tensor-parallel plan; "
    "of such, only modules are compiled, on the CPU, where agspeed.optimize comes after fully_shard"
)


def home_of(tensors: Iterable[torch.Tensor]) -> torch.device:
    """Returns the device of the first tensor that has dimensions; the CPU if there is none."""
    return next((tensor.device for tensor in tensors if tensor.ndim > 0), CPU)


def why_eager(tensors: Iterable[torch.Tensor], home: torch.device = CPU) -> str | None:
    """Returns why a target at `home` stays eager because of the first unsuitable one of `tensors`; None if all are
    suitable.
    """
    for tensor in tensors:
        if is_sharded(tensor):
            return _SHARDED
        is_elsewhere = tensor.device != home or home.type not in TIMED_DEVICES
        if is_elsewhere and (reason := _why_elsewhere(tensor, home)) is not None:
            return reason
    return None


def naming(reason: str | None, module: torch.nn.Module | None) -> str | None:
    """Returns a reason of `why_eager`. If the reason is sharding, it also names the first sharded part of `module`."""
    if reason != _SHARDED or module is None:
        return reason
    for name, part in module.named_modules():
        if any(map(is_sharded, part.parameters(recurse=False))):
            where = f"of {name} ({type(part).__name__})" if name else f"of {type(part).__name__} itself"
            return f"{reason}: first those {where}"
    return reason


def _why_elsewhere(tensor: torch.Tensor, home: torch.device) -> str | None:
    device = tensor.device
    if device.type == "meta":
        return 'it works on the device meta, which holds no values: optimize it after model.to_empty(device="cpu")'
    if device.type not in TIMED_DEVICES:
        return (
            f"it works on the device {device}, and only what runs on the CPU or one CUDA GPU can be timed and metered"
        )
    if device.type == "cpu" and tensor.ndim == 0:
        return None
    return (
        f"it works on the device {device} and on {home}: a model that is spread over devices, or moves later, is not "
        "tuned"
    )


def is_sharded(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is a DTensor, of which this process holds a part."""
    home = sys.modules.get("torch.distributed.tensor")  # if this module is not loaded, there are no DTensors
    return home is not None and isinstance(tensor, home.DTensor)


def graph_tensors(gm: fx.GraphModule) -> Iterable[torch.Tensor]:
    """Returns the inputs and intermediate results of a graph captured by Dynamo, as fake tensors."""
    return tensors_in([node.meta.get("example_value") for node in gm.graph.nodes])


def module_tensors(module: torch.nn.Module) -> Iterable[torch.Tensor]:
    """Yields a module's parameters and buffers."""
    yield from module.parameters()
    yield from module.buffers()


def call_tensors(args: Any, kwargs: Any) -> Iterable[torch.Tensor]:
    """Returns the tensors among a call's arguments."""
    return tensors_in((args, kwargs))


def tensors_in(value: Any) -> Iterable[torch.Tensor]:
    """Yields the tensors in nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
