# SPDX-License-Identifier: Apache-2.0
"""Takes the state and options of optimizers apart for sending, and puts received ones in place.

put() writes into the existing dicts and tensors. So schedulers, other optimizers with the same groups, and all other
holders of a state's tensor see the new values. Tensors keep the sender's types, even if parameters have other types.
"""

from __future__ import annotations

from typing import Any

import torch

from agspeed.errors import UserError

__all__ = ["parameters_of", "put", "take_apart", "unite"]

_EXTRACTED = "agspeed tensor number"
"""The key of a dict that replaces a tensor in the skeleton; its value is the tensor's number."""
_HOST = torch.device("cpu")


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All current parameters of an optimizer, group after group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def take_apart(optimizer: torch.optim.Optimizer) -> tuple[Any, list[torch.Tensor]]:
    """Returns the optimizer's state_dict() with numbers in place of tensors, and the optimizer's own tensors."""
    tensors: list[torch.Tensor] = []
    return _extract(optimizer.state_dict(), tensors), tensors


def unite(optimizer: torch.optim.Optimizer, skeleton: Any, tensors: list[tuple[torch.Tensor, bool]]) -> Any:
    """Reverses take_apart() at another rank: returns a state_dict() for put().

    tensors: the received tensors, all in host memory, each with whether it stays there. The others move to the device
    of their parameter.
    """
    if _loads_by_itself(optimizer):
        return _insert(skeleton, tensors, _HOST)
    devices = {key: parameter.device for key, parameter in _by_key(optimizer, skeleton).items()}
    state = {key: _insert(entry, tensors, devices.get(key, _HOST)) for key, entry in skeleton["state"].items()}
    groups = [
        _insert(group, tensors, devices[group["params"][0]] if group["params"] else _HOST)
        for group in skeleton["param_groups"]
    ]
    return {"state": state, "param_groups": groups}


def put(optimizer: torch.optim.Optimizer, wanted: dict[str, Any]) -> None:
    """Gives the optimizer the state and options of a state_dict(). The optimizer may keep the dict's tensors.

    An optimizer class with its own load_state_dict() loads the state by that method. Raises: UserError if the
    optimizer's groups have other sizes.
    """
    if _loads_by_itself(optimizer):
        optimizer.load_state_dict(wanted)
        return
    parameters = _by_key(optimizer, wanted)
    for group, values in zip(optimizer.param_groups, wanted["param_groups"], strict=True):
        _update(group, {key: value for key, value in values.items() if key != "params"})
    state = {parameters.get(key, key): value for key, value in wanted["state"].items()}
    for left in [each for each in optimizer.state if each not in state]:
        del optimizer.state[left]
    _update(optimizer.state, state)


def _loads_by_itself(optimizer: torch.optim.Optimizer) -> bool:
    return type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict


def _by_key(optimizer: torch.optim.Optimizer, wanted: dict[str, Any]) -> dict[Any, torch.Tensor]:
    """The optimizer's parameters, by their keys in the state_dict()."""
    own = [len(group["params"]) for group in optimizer.param_groups]
    sizes = [len(group["params"]) for group in wanted["param_groups"]]
    if own != sizes:
        raise UserError(
            f"this rank's optimizer has {len(own)} groups of {own} parameters, and the state it gets is of "
            f"{len(sizes)} groups of {sizes}: make the same groups at all ranks."
        )
    keys = [key for group in wanted["param_groups"] for key in group["params"]]
    return dict(zip(keys, parameters_of(optimizer), strict=True))


def _update(own: Any, values: dict[Any, Any]) -> None:
    for key, value in values.items():
        own[key] = _merged(own.get(key), value)


def _merged(old: Any, new: Any) -> Any:
    """Returns the old object with the new values if it can hold them, else the new object."""
    if isinstance(old, dict) and isinstance(new, dict):
        for left in [key for key in old if key not in new]:
            del old[left]
        _update(old, new)
        return old
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return new
    if (old.shape, old.dtype, old.layout) != (new.shape, new.dtype, new.layout):
        return new
    with torch.no_grad():
        return old.copy_(new)


def _extract(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Returns `value` with its tensors moved to the list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach().contiguous())
        return {_EXTRACTED: len(tensors) - 1}
    if isinstance(value, dict):
        return {key: _extract(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_extract(each, tensors) for each in value)
    return value


def _insert(value: Any, tensors: list[tuple[torch.Tensor, bool]], device: torch.device) -> Any:
    """Reverses _extract."""
    if isinstance(value, dict):
        if value.keys() == {_EXTRACTED}:
            tensor, is_on_host = tensors[value[_EXTRACTED]]
            return tensor if is_on_host else tensor.to(device)
        return {key: _insert(each, tensors, device) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_insert(each, tensors, device) for each in value)
    return value
