# SPDX-License-Identifier: Apache-2.0
"""Decomposes backward operators so that a NaN is kept, as in eager's kernels.

For example, torch decomposes the gradient of hardswish into ``where(x < 3, grad * (x / 3 + 0.5), grad)``. If x is NaN,
this gives grad, a finite number, whereas eager's vector code on the CPU gives NaN. Pure; any thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from agspeed.torch_compat.operators import get_decompositions

_aten = torch.ops.aten
_VALUES: dict[Any, Callable[..., torch.Tensor]] = {
    _aten.elu_backward.default: lambda grad, alpha, scale, input_scale, is_result, value: value,
    _aten.hardswish_backward.default: lambda grad, value: value,
    _aten.smooth_l1_loss_backward.default: lambda grad, value, target, *_: value - target,
}
"""{operator: computes, from its arguments, the value whose NaNs must be kept}."""
ACTIVATIONS = (_aten.elu_backward.default, _aten.hardswish_backward.default)
LOSSES = (_aten.smooth_l1_loss_backward.default,)


def keeping_nan(operators: Sequence[Any]) -> dict[Any, Callable[..., Any]]:
    """Returns {operator: decomposition}. operators: a selection from `ACTIVATIONS` and `LOSSES`."""
    return {op: functools.partial(_kept, op, theirs) for op, theirs in get_decompositions(operators).items()}


def _kept(op: Any, theirs: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
    result, value = theirs(*args), _VALUES[op](*args)
    if op in ACTIVATIONS and value.device.type != "cpu":  # here CUDA's kernels lose NaN like torch's decompositions
        return result
    return torch.where(torch.isnan(value), value.to(result.dtype), result)
