# SPDX-License-Identifier: Apache-2.0
"""Decomposes depthwise convolutions so that a NaN spreads over an image's padding where it does so in eager's kernels.

The native kernels multiply only elements inside the image. Most of eager's kernels do the same. The others multiply the
zeros of the padding, too, so that an infinite or NaN factor makes NaN at the borders. Eager chooses its kernel by the
processor and by sizes. For example, on an EPYC with AVX-512 the gradients of 5x5 filters come from such a kernel. This
module tries each form of a convolution once. Where NaN spreads, it pads the image before the convolution. The compiler
makes the padding a part of the convolution's kernel, which then multiplies the zeros, too. Any thread.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agspeed.torch_compat.modes import _disable_current_modes

_aten = torch.ops.aten
_inside = threading.local()


class _Form(NamedTuple):
    """The properties of a convolution by which eager chooses its kernel."""

    image: tuple[int, ...]  # channels, rows, columns
    weight: tuple[int, ...]
    is_channels_last: bool
    has_onednn: bool  # whether eager may use oneDNN's kernels
    dtype: torch.dtype
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


class _Spread(NamedTuple):
    """Whether NaN spreads over the padding, for each result of a convolution and its backward."""

    output: bool
    weight_gradient: bool


def spreading_nan() -> dict[Any, Callable[..., Any]]:
    """Returns {operator: decomposition}. A decomposition returns NotImplemented if NaN does not spread."""
    return {_aten.convolution.default: _convolution, _aten.convolution_backward.default: _convolution_backward}


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Any:
    spread = _spread_of(x, weight, options)
    if spread is None or not spread.output:
        return NotImplemented
    return _whole(_aten.convolution.default, _padded(x, options), weight, bias, *_without_padding(options))


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, *options: Any) -> Any:
    spread = _spread_of(x, weight, options)
    if spread is None or not spread.weight_gradient:
        return NotImplemented
    options, (needs_input, needs_weight, needs_bias) = options[:-1], options[-1]
    backward = functools.partial(_whole, _aten.convolution_backward.default, grad)
    for_input = for_weight = for_bias = None
    if needs_input:
        for_input = backward(x, weight, bias_sizes, *options, (True, False, False))[0]
    if needs_weight or needs_bias:
        padded, mask = _padded(x, options), (False, needs_weight, needs_bias)
        _, for_weight, for_bias = backward(padded, weight, bias_sizes, *_without_padding(options), mask)
    return for_input, for_weight, for_bias


def _whole(operator: Any, *args: Any) -> Any:
    """Calls the operator, which is not decomposed meanwhile."""
    _inside.is_whole = True
    try:
        return operator(*args)
    finally:
        _inside.is_whole = False


def _padded(x: Tensor, options: Sequence[Any]) -> Tensor:
    rows, columns = options[1][0], options[1][-1]  # one number stands for both
    padded: Tensor = _aten.constant_pad_nd.default(x, (columns, columns, rows, rows), 0)
    return padded


def _without_padding(options: Sequence[Any]) -> tuple[Any, ...]:
    return options[0], (0, 0), *options[2:]


def _spread_of(x: Tensor, weight: Tensor, options: Sequence[Any]) -> _Spread | None:
    """Returns how NaN spreads in this convolution. None: the native compiler has no kernel for it.

    options: stride, padding, dilation, transposed, output_padding, groups, and perhaps more.
    """
    stride, padding, dilation, is_transposed, _, groups = options[:6]
    if getattr(_inside, "is_whole", False) or x.dim() != 4 or is_transposed or not any(padding):
        return None
    sizes = (*x.shape[1:], *weight.shape)
    if x.device.type != "cpu" or any(isinstance(size, torch.SymInt) for size in sizes):
        return None
    if not groups == x.shape[1] == weight.shape[0] or 0 in sizes:
        return None
    is_channels_last = not x.is_contiguous() and _has_channels_last_strides(x)
    axes = (tuple(numbers) for numbers in (stride, padding, dilation))
    has_onednn = bool(torch.backends.mkldnn.enabled)
    return _spread(_Form(tuple(x.shape[1:]), tuple(weight.shape), is_channels_last, has_onednn, x.dtype, *axes))


def _has_channels_last_strides(x: Tensor) -> bool:
    """Returns whether eager takes an image for a channels-last one. It need not be dense, for example after a slice."""
    _, channels, _, columns = x.shape
    _, per_channel, per_row, per_column = x.stride()
    return 0 < per_channel * channels <= per_column and per_column * columns <= per_row


@functools.lru_cache(maxsize=1024)
def _spread(form: _Form) -> _Spread:
    """Tries eager's kernels with one number, first 1 and then NaN, in the filter or in the gradient."""
    options = (form.stride, form.padding, form.dilation, False, (0, 0), form.image[0])
    layout = torch.channels_last if form.is_channels_last else torch.contiguous_format
    with _disable_current_modes(), torch.no_grad():
        x = torch.ones((1, *form.image), dtype=form.dtype).contiguous(memory_format=layout)

        def output(number: float) -> Tensor:
            weight = torch.zeros(form.weight, dtype=form.dtype)
            weight[:, 0, 0, 0] = number
            result: Tensor = _aten.convolution.default(x, weight, None, *options)
            return result

        def weight_gradient(number: float) -> Tensor:
            grad = torch.zeros_like(output(0))
            grad[..., 0, 0] = number
            weight = torch.zeros(form.weight, dtype=form.dtype)
            results = _aten.convolution_backward.default(grad, x, weight, None, *options, (True, True, False))
            result: Tensor = results[1]
            return result

        def spreads(compute: Callable[[float], Tensor]) -> bool:
            return bool(((compute(1) == 0) & compute(math.nan).isnan()).any())

        return _Spread(spreads(output), spreads(weight_gradient))
