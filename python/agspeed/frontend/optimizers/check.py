# SPDX-License-Identifier: Apache-2.0
"""Compares one fused step with one plain step of an optimizer, through the gate.

Both run on copies of samples: from each kind of parameters three tensors at most, the first elements of each. That is
enough because the fused kernel goes through the tensors one by one and treats all elements alike, and it bounds the
time of the check.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from agspeed.backends.base import Runner
from agspeed.config import Settings
from agspeed.frontend.optimizers.fitness import Kind, kind_of, trained

if TYPE_CHECKING:
    from agspeed.tuning.gate import check as gate

_MAX_ELEMENTS = (1 << 15) + 5
"""At most this number of elements of a tensor. It is odd, so that the kernel's code for the last elements runs, too."""

_LOSES_NAN = "max_exp_avg_sq"
"""Not compared, because the fused kernel may lose a NaN there. The parameter becomes NaN in any case, and it depends on
all numbers in there."""


def check_fused(optimizer: torch.optim.Optimizer, settings: Settings) -> gate.Verdict:
    """Compares the parameters and the state after one step, from the same parameters, gradients and state.

    Requires: `fitness.why_unfit` finds nothing.
    """
    from agspeed.tuning.gate import check as gate

    samples = _samples(optimizer)
    states = [dict(optimizer.state.get(p, {})) for _, p in samples]
    names = [[key for key, value in state.items() if isinstance(value, torch.Tensor)] for state in states]
    tensors = [_flat(p) for _, p in samples] + [_flat(p.grad) for _, p in samples if p.grad is not None]
    tensors += [_flat(state[key]) for state, keys in zip(states, names, strict=True) for key in keys]
    groups = [group for group, _ in samples]

    def update(fused: bool) -> Runner:
        def run(*values: torch.Tensor) -> Sequence[object]:
            return _step_on(values, optimizer, groups, states, names, fused)

        return run

    with torch.no_grad():
        return gate.check(update(True), update(False), tensors, gate.Policy(settings.numerics, gradients=False))


def _samples(optimizer: torch.optim.Optimizer) -> list[tuple[dict[str, Any], torch.Tensor]]:
    """Returns the smallest, a middle and the largest parameter of each kind, with their groups."""
    kinds: dict[Kind, list[tuple[dict[str, Any], torch.Tensor]]] = defaultdict(list)
    for group, p in trained(optimizer):
        kinds[kind_of(group, p)].append((group, p))
    found = []
    for alike in kinds.values():
        alike.sort(key=lambda each: each[1].numel())
        found += [alike[index] for index in sorted({0, len(alike) // 2, len(alike) - 1})]
    return found


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the first elements in memory of a dense tensor."""
    return tensor.detach().as_strided((min(tensor.numel(), _MAX_ELEMENTS),), (1,)) if tensor.ndim else tensor.detach()


def _step_on(
    values: Sequence[torch.Tensor],
    original: torch.optim.Optimizer,
    groups: Sequence[dict[str, Any]],
    states: Sequence[dict[str, Any]],
    names: Sequence[Sequence[str]],
    fused: bool,
) -> Sequence[torch.Tensor]:
    """Runs one step of an optimizer like `original` on copies of `values`: the parameters, their gradients and their
    states' tensors. Returns the parameters and the tensors of the states after it.

    Neither hooks of optimizers run nor code that watches for new ones, because the script has not made this optimizer.
    """
    count = len(groups)
    parameters = [torch.nn.Parameter(value.clone()) for value in values[:count]]
    for parameter, gradient in zip(parameters, values[count : 2 * count], strict=True):
        parameter.grad = gradient.clone()
    rest = iter(values[2 * count :])
    state: dict[torch.Tensor, Any] = defaultdict(dict)
    for parameter, own, keys in zip(parameters, states, names, strict=True):
        if own:
            state[parameter] = {**own, **{key: next(rest).clone() for key in keys}}
    kind: Any = type(original)
    replica = kind.__new__(kind)
    made = [
        {**group, "params": [p], "fused": fused, "foreach": False} for group, p in zip(groups, parameters, strict=True)
    ]
    vars(replica).update(defaults=original.defaults, state=state, param_groups=made)
    kind.step.__wrapped__(replica)
    after = [value for p in parameters for key, value in state[p].items() if key != _LOSES_NAN]
    return [p.detach() for p in parameters] + [value for value in after if isinstance(value, torch.Tensor)]
