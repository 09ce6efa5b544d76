# SPDX-License-Identifier: Apache-2.0
"""Computes matrix products and convolutions of 16-bit floats in float32 where torch has no fast 16-bit ones.

torch's fast 16-bit products come from oneDNN. Without AVX-512, oneDNN has none, and torch runs plain loops, which are
much slower than a float32 product (`steady/avx2_one_thread` in benchmarks/results). Both round a sum in float32 once,
so the results differ only by the order of the additions. Attention's backward rounds fewer of its intermediate values.

The partitioner must see the 16-bit tensors, because they need half the memory between forward and backward. So this
changes the graph of one direction, not the joint one. Thread-safety: one thread per graph.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch import Tensor, fx

_aten = torch.ops.aten
_CONVOLUTIONS: dict[Any, int] = {_aten.convolution.default: 0, _aten.convolution_backward.default: 1}
"""{operator: position of the image, which the weight follows}."""
_PRODUCTS = (
    *_CONVOLUTIONS,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default,  # its forward is fast for all types
    _aten.addmm.default,
    _aten.baddbmm.default,
    _aten.bmm.default,
    _aten.mm.default,
)
_VIEWS = (
    _aten._unsafe_view.default,
    _aten.permute.default,
    _aten.t.default,
    _aten.transpose.int,
    _aten.view.default,
)


@functools.cache
def slow_types() -> frozenset[torch.dtype]:
    """Returns the 16-bit types whose products torch computes by plain loops on this CPU."""
    types = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    has_onednn = torch.backends.mkldnn.is_available()
    return frozenset(dtype for dtype, name in types.items() if not (has_onednn and getattr(torch.ops.mkldnn, name)()))


def widen_products(graph: fx.GraphModule) -> None:
    """Puts conversions around the slow products of an ATen graph. Depthwise convolutions stay, because they become
    native kernels, and so do products of constants of the graph."""
    for node in list(graph.graph.nodes):
        if node.target not in _PRODUCTS or not all("val" in factor.meta for factor in node.all_input_nodes):
            continue
        first = node.args[0].meta["val"]
        if first.device.type == "cpu" and first.dtype in slow_types() and not _is_depthwise(node):
            _widen(graph.graph, node, first.dtype)


def _is_depthwise(product: fx.Node) -> bool:
    at = _CONVOLUTIONS.get(product.target)
    if at is None:
        return False
    image, weight = (arg.meta["val"] for arg in product.args[at : at + 2])  # type: ignore[union-attr]
    return bool(weight.shape[1] == 1 and weight.shape[0] == image.shape[1])


def _widen(graph: fx.Graph, product: fx.Node, dtype: torch.dtype) -> None:
    def wide(arg: fx.Node) -> fx.Node:
        return _widened(graph, arg) if _is_of(arg.meta["val"], dtype) else arg

    with graph.inserting_before(product):
        product.args, product.kwargs = fx.map_arg(product.args, wide), fx.map_arg(product.kwargs, wide)
    results = [user for user in product.users if user.target is operator.getitem] or [product]
    declared = product.meta["val"]
    if isinstance(declared, tuple | list):
        product.meta["val"] = tuple(value.float() if _is_of(value, dtype) else value for value in declared)
    for result in results:
        if _is_of(result.meta["val"], dtype):
            _narrow(graph, result, dtype)


def _narrow(graph: fx.Graph, result: fx.Node, dtype: torch.dtype) -> None:
    """Converts a float32 result back, behind its views, so that the conversion fuses with what reads them."""
    value = result.meta["val"]
    result.meta["val"] = value.float()
    if len(result.users) == 1 and next(iter(result.users)).target in _VIEWS:
        _narrow(graph, next(iter(result.users)), dtype)
        return
    with graph.inserting_after(result):
        narrow = graph.call_function(_aten._to_copy.default, (result,), {"dtype": dtype})
    narrow.meta["val"] = value
    result.replace_all_uses_with(narrow, delete_user_cb=lambda user: user is not narrow)


def _is_of(value: Any, dtype: torch.dtype) -> bool:
    return isinstance(value, Tensor) and value.dtype == dtype


def _widened(graph: fx.Graph, value: fx.Node) -> fx.Node:
    """Converts the source of a view, so that the conversion fuses with its producer, and all views share it."""
    wide = value.meta["val"].float()
    source = value.args[0] if value.target in _VIEWS else None
    layout = source.meta.get("val") if isinstance(source, fx.Node) else None
    if layout is not None and layout.stride() == layout.float().stride():
        node = graph.call_function(value.target, (_widened(graph, source), *value.args[1:]))  # type: ignore[arg-type]
    else:
        node = graph.call_function(_aten._to_copy.default, (value,), {"dtype": torch.float32})
    node.meta["val"] = wide
    return node
