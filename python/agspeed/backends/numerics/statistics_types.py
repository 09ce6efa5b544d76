# SPDX-License-Identifier: Apache-2.0
"""Gives the statistics of 16-bit batch and layer norm the types that ATen returns. Tracing on the CPU shows others.

With float32 parameters, the statistics of 16-bit images are float32, but tracing shows 16 bits. With 16-bit parameters,
the new running statistics have 16 bits, but tracing shows float32. Group norm is decomposed, so its statistics have the
types of its parts. Thread-safety: one thread per graph.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten
_PARAMETERS: dict[Any, range] = {
    _aten._native_batch_norm_legit.no_stats: range(1, 3),
    _aten._native_batch_norm_legit_functional.default: range(1, 5),
    _aten._native_batch_norm_legit_no_training.default: range(1, 5),
    _aten.native_layer_norm.default: range(2, 4),
}
"""{operator: positions of its parameters and running statistics}. The first result has the type of the images."""


def declare_statistics(graph: fx.GraphModule) -> None:
    """Changes the declared types in an ATen graph of both directions, before it is partitioned."""
    for norm in graph.graph.nodes:
        if norm.target not in _PARAMETERS:
            continue
        images, *statistics = norm.meta["val"]
        norm.meta["val"] = (images, *(_declared(norm, value) for value in statistics))
        for result in norm.users:
            if result.target is operator.getitem:
                result.meta["val"] = norm.meta["val"][result.args[1]]


def _declared(norm: fx.Node, statistic: torch.Tensor) -> torch.Tensor:
    image = _type(norm.args[0])
    if statistic.device.type != "cpu" or image not in (torch.bfloat16, torch.float16):
        return statistic
    types = (_type(norm.args[at]) for at in _PARAMETERS[norm.target])
    return statistic.to(next((dtype for dtype in types if dtype is not None), image))


def _type(arg: Any) -> torch.dtype | None:
    return arg.meta["val"].dtype if isinstance(arg, fx.Node) else None
