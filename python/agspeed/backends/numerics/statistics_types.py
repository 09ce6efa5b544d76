# SPDX-License-Identifier: Apache-2.0
"""Gives the statistics of 16-bit batch norm the types that ATen returns. Tracing on the CPU shows others.

With float32 parameters, the statistics of 16-bit images are float32, but tracing shows 16 bits. With 16-bit parameters,
the new running statistics have 16 bits, but tracing shows float32. Thread-safety: one thread per graph.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

_NAME = "_native_batch_norm_legit"
_FIRST_STATISTIC = 1  # of the results; the images are before


def declare_statistics(graph: fx.GraphModule) -> None:
    """Changes the declared types in an ATen graph of both directions, before it is partitioned."""
    for node in graph.graph.find_nodes(op="call_function", target=operator.getitem):
        norm, index = node.args
        if norm.op == "call_function" and _NAME in str(norm.target) and index >= _FIRST_STATISTIC:
            node.meta["val"] = _declared(norm, node.meta["val"])
    for norm in graph.graph.nodes:
        if norm.op == "call_function" and _NAME in str(norm.target):
            images, *statistics = norm.meta["val"]
            norm.meta["val"] = (images, *(_declared(norm, value) for value in statistics))


def _declared(norm: fx.Node, statistic: torch.Tensor) -> torch.Tensor:
    image, *parameters = (_type(arg) for arg in norm.args[:5])
    if statistic.device.type != "cpu" or image not in (torch.bfloat16, torch.float16):
        return statistic
    return statistic.to(next((dtype for dtype in parameters if dtype is not None), image))


def _type(arg: Any) -> torch.dtype | None:
    return arg.meta["val"].dtype if isinstance(arg, fx.Node) else None
