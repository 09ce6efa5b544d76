# SPDX-License-Identifier: Apache-2.0
"""The common base of the classes that DistributedOptimizer puts in front of the user's optimizer class.

A wrapped optimizer has no groups and no state of its own; it reads both from the user's optimizer. So both optimizers
have the same groups and state, also after load_state_dict() or an assignment at either of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from agspeed.errors import UserError, UserTypeError

__all__ = ["ParameterNames", "Wrapped", "wrap"]

if TYPE_CHECKING:
    _Base = torch.optim.Optimizer
else:
    _Base = object

_SHARED = ("param_groups", "state")
# Schedulers that were made before the wrap may have replaced these methods of the user's optimizer by theirs.
_PATCHED = ("step", "zero_grad")


class Wrapped(_Base):
    """An optimizer that takes groups and state from the user's optimizer."""

    _inner: torch.optim.Optimizer
    _parameter_names: ParameterNames
    """Scripts for Horovod read this attribute, so it keeps Horovod's name."""

    @property
    def param_groups(self) -> Any:
        return self._inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: Any) -> None:
        self._inner.param_groups = groups

    @property
    def state(self) -> Any:
        return self._inner.state

    @state.setter
    def state(self, state: Any) -> None:
        self._inner.state = state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """load_state_dict() calls this with the new state."""
        self._inner.__setstate__(state)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise UserTypeError(
            f"a {type(self).__name__} that hvd.DistributedOptimizer() has wrapped cannot be copied or pickled, as its "
            "gradients are reduced by hooks of its parameters: copy its state_dict(), or the optimizer before the wrap."
        )


def wrap(optimizer: torch.optim.Optimizer, before: type[Wrapped], names: ParameterNames) -> Any:
    """Makes an object of a new class that inherits from `before` first and the optimizer's class second.

    The object shares the optimizer's attributes. Raises: UserError for an optimizer that is wrapped already.
    """
    if isinstance(optimizer, Wrapped):
        raise UserError(
            "this optimizer was returned by hvd.DistributedOptimizer(): wrap the optimizer that it was made from."
        )
    made_class: Any = type(type(optimizer).__name__, (before, type(optimizer)), {})
    made = made_class.__new__(made_class)
    attributes = {name: value for name, value in vars(optimizer).items() if name not in (*_SHARED, *_PATCHED)}
    vars(made).update(attributes, _inner=optimizer, _parameter_names=names)
    return made


class ParameterNames(dict[torch.Tensor, str]):
    """The names under which ranks reduce an optimizer's parameters: the user's names, and numbers for later ones."""

    def __init__(self, given: dict[torch.Tensor, str]) -> None:
        super().__init__(given)
        self._present: set[torch.Tensor] = set()
        self._num_added = 0

    def follow(self, parameters: Sequence[torch.Tensor]) -> None:
        """Names new parameters, and forgets parameters of the previous call that are not in `parameters`."""
        for left in self._present.difference(parameters):
            del self[left]
        self._present = set(parameters)
        for each in parameters:
            if each not in self:
                self[each] = f"allreduce.added.{self._num_added}"
                self._num_added += 1
