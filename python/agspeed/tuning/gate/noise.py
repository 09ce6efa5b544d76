# SPDX-License-Identifier: Apache-2.0
"""Rounding noise for the gate's third run, which estimates how far two correct implementations in one precision differ.

`Noisy` changes every operator result by one step eps of the precision. It changes every sum by the error that another
order of summation may cause. For S = x_1 + ... + x_n the model is:

- An addition rounds its partial sum by at most u = eps / 2. Independent rounding errors with mean zero accumulate like
  a random walk: d additions in sequence cause an error of about sqrt(d) u times a typical partial sum (Higham and Mary,
  "A new approach to probabilistic rounding error analysis", 2019). A worst-case bound has d in place of sqrt(d).
- If the terms come in random order, the mean square of a partial sum is at most S^2 + x_1^2 + ... + x_n^2 (the sum
  itself, plus the random walk of terms that cancel). Averaged over the growth from zero to S, it is a third of that.
- d depends on the method: n for one accumulator, about log2(n) for pairwise summation, and 2 sqrt(n) for blocks of
  sqrt(n) terms, which is the minimum for blocks without recursion. Vector lanes and threads divide n. The model takes
  the middle one, d = 2 sqrt(n).

So a sum of n terms changes by ``eps sqrt(sqrt(n) / 6) sqrt(S^2 + sum of x_i^2)``, and at least by eps |S|: 5 eps for 16
thousand terms, 22 eps for 8 million. A sum of up to `_SHORT` terms changes by eps |S|.

Sums and means of up to `_CHAIN` terms change at least by the error of one float32 accumulator, because a compiled loop
over rows has one accumulator per column. Such a sum is really computed: rounding errors of equal terms (a broadcast
gradient) are not independent, so the model does not cover them. In longer sums an accumulator takes `_CHUNK` terms, as
in Inductor's loops. In a convolution's bias gradient it takes all terms: oneDNN adds one image after the other, with
a vector lane per channel, and the number of threads that share the images depends on the memory format.

Inner products and convolutions are sums too. They are multilinear, so the operator applied to squared arguments gives
the sums of squares. The model assumes that sums of every element type are accumulated at least in float32, and in
float64 if that is the precision. Normalisations, softmax, losses and other composite operators run as the elementary
operators that they consist of, so that noise enters at their sums.

A matrix product that is added to a tensor may be accumulated directly onto that tensor: ``addmm`` does this, and
compilers fuse the two operators into it. Each partial sum is then as large as the tensor. The error depends on the
library's blocking, so this sum is also really computed: the result changes at least by its error.

The derivative of relu and similar functions jumps. Noise decides on which side of the jump a nearby element lies, and
one element in a million can change a gradient by more than all rounding errors. In a noisy run, elements within
`_REACH` steps of the tensor's RMS from the jump may change sides; for relu, all elements below it and half of the
elements above it do. This distance is many times the rounding error, so the run crosses the jump wherever a candidate
may. Modes belong to one run and one thread.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

from agspeed.torch_compat import operators
from agspeed.torch_compat.modes import TorchDispatchMode, _disable_current_modes, tree_leaves, tree_map_only
from agspeed.torch_compat.modules import storage_of, version_of
from agspeed.torch_compat.operators import get_decompositions, is_non_overlapping_and_dense_or_false
from agspeed.tuning.gate.modes import RANDOM, has_alias

aten = torch.ops.aten

_COMPOUND = (
    aten.native_batch_norm,
    aten._native_batch_norm_legit,
    aten._batch_norm_with_update,
    aten.native_batch_norm_backward,
    aten.batch_norm_backward,
    aten.native_layer_norm,
    aten.native_layer_norm_backward,
    aten.native_group_norm,
    aten.native_group_norm_backward,
    aten._softmax,
    aten._log_softmax,
    aten._softmax_backward_data,
    aten._log_softmax_backward_data,
    aten.logsumexp,
    aten.linalg_vector_norm,
    aten.mse_loss,
    aten.smooth_l1_loss,
    aten.binary_cross_entropy,
)
"""Operators that contain sums and can be decomposed into other operators."""

Counts = Callable[[Sequence[Any], Any], Sequence[int]]
"""Maps an operator's arguments and its (first) result to the number of terms in each element of each result."""


def _reduced(args: Sequence[Any], result: torch.Tensor) -> Sequence[int]:
    return (args[0].numel() // max(result.numel(), 1),)


def _along(args: Sequence[Any], result: torch.Tensor) -> Sequence[int]:
    return (args[0].shape[args[1]] if args[0].dim() else 1,)


def _inner(position: int) -> Counts:
    return lambda args, result: (args[position].shape[-1],)


def _convolution(args: Sequence[Any], result: torch.Tensor) -> Sequence[int]:
    return (args[1].numel() // result.shape[1],)


def _convolution_backward(args: Sequence[Any], result: Any) -> Sequence[int]:
    gradient, image, weight = args[:3]
    per_channel = gradient.numel() // gradient.shape[1]
    return weight.numel() // image.shape[1], per_channel, per_channel


_SUMS: dict[Any, Counts] = {
    aten.sum.default: _reduced,
    aten.sum.dim_IntList: _reduced,
    aten.mean.default: _reduced,
    aten.mean.dim: _reduced,
    aten.cumsum.default: _along,
    aten.dot.default: _inner(0),
    aten.mv.default: _inner(0),
    aten.mm.default: _inner(0),
    aten.bmm.default: _inner(0),
    aten.addmv.default: _inner(1),
    aten.addmm.default: _inner(1),
    aten.baddbmm.default: _inner(1),
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}
_MEANS = (aten.mean.default, aten.mean.dim)
_PLAIN_SUMS = (aten.sum.default, aten.sum.dim_IntList, *_MEANS)
_CHAINED = {**dict.fromkeys(_PLAIN_SUMS, 0), aten.convolution_backward.default: 2}
"""{operator: the index of the result that sums the elements of its first argument}."""
_SHORT = 64
_CHAIN = 16384
_CHUNK = 4096
_BLOCK = 1 << 17
"""Noise is added to this many elements at a time."""
_MANY = 4096
_ADDITIONS = (aten.add.Tensor, aten.add_.Tensor)
_RELU = (aten.relu.default, aten.relu_.default)
_JUMPS = (
    aten.hardsigmoid_backward.default,
    aten.hardswish_backward.default,
    aten.hardtanh_backward.default,
    aten.leaky_relu_backward.default,
)
"""Derivatives that jump where their second argument passes a constant. relu's derivative takes relu's result instead.
"""
_REACH = 1024


class Noisy(TorchDispatchMode):
    """Changes every floating point result as much as rounding may; see the module docstring."""

    def __init__(self, eps: float, seed: int) -> None:
        """eps: the step of the precision to imitate; seed: determines the signs of the changes."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._eps = eps
        self._sum_eps = min(eps, torch.finfo(torch.float32).eps)
        self._accumulator = torch.float32 if eps >= torch.finfo(torch.float32).eps else torch.float64
        self._generator = torch.Generator().manual_seed(seed)
        self._products: Any = WeakIdKeyDictionary()
        """{living matrix product: its factors, and the versions of all three (`_versions`)}."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        parts = _parts(func)
        if parts is not None:
            with self:
                return parts(*args, **kwargs)
        if func in _RELU and args[0].is_floating_point():
            return self._relu(func, args[0])
        if func in _JUMPS:
            args = (args[0], self._displaced(args[1]), *args[2:])
        if func is aten.threshold_backward.default:
            args = (args[0], self._closed(args[1]), *args[2:])
        if func in _ADDITIONS and not kwargs:
            return self._added(func, args)
        result = func(*args, **kwargs)
        if has_alias(func) or RANDOM in func.tags:
            return result
        if func not in _SUMS:
            given = {_memory(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
            return tree_map_only(torch.Tensor, lambda value: self._shake(value, _memory(value) not in given), result)
        with _disable_current_modes():
            moved = self._resummed(func, args, kwargs, result)
            if func is aten.mm.default and (versions := _versions(moved, *args)) is not None:
                self._products[moved] = args, versions
        return moved

    def shaken(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor whose elements are one step higher or lower."""
        return self._shake(tensor, is_own=False)

    def _shake(self, tensor: torch.Tensor, is_own: bool) -> torch.Tensor:
        """Like `shaken`, in place if `is_own`. Works in blocks, so that a block stays in the processor's caches."""
        if not _is_inexact(tensor):
            return tensor
        with _disable_current_modes():
            if tensor.dtype not in (torch.float32, torch.float64) or not is_non_overlapping_and_dense_or_false(tensor):
                steps = self._signs(tensor).to(torch.promote_types(tensor.real.dtype, torch.float32))
                return tensor * steps.mul_(self._eps).add_(1)
            own = tensor if is_own else tensor.clone()
            flat = own.as_strided((own.numel(),), (1,))
            for block in flat.split(_BLOCK):
                block.mul_(self._signs(block).to(block.dtype).mul_(self._eps).add_(1))
            return own

    def _relu(self, func: Any, x: torch.Tensor) -> torch.Tensor:
        """Runs relu so that its backward also lets the gradient pass for numbers just below zero."""
        with _disable_current_modes():
            crossing = (x < 0) & (x > -self._reach(x))
            result: torch.Tensor = func(x)
            result.masked_fill_(crossing, torch.finfo(x.dtype).tiny)
        return result

    def _closed(self, result: torch.Tensor) -> torch.Tensor:
        """Returns relu's result for its backward, with half of the numbers just above zero set to zero: they block the
        gradient."""
        with _disable_current_modes():
            near = (result > torch.finfo(result.dtype).tiny) & (result < self._reach(result))
            return result.masked_fill(near & (self._signs(result) > 0), 0)

    def _displaced(self, tensor: torch.Tensor) -> torch.Tensor:
        with _disable_current_modes():
            return tensor + self._signs(tensor) * self._reach(tensor)

    def _reach(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.square().mean().sqrt() * (self._sum_eps * _REACH)

    def _added(self, func: Any, args: Any) -> Any:
        """Runs an addition of two tensors. If one is a matrix product, it may be accumulated onto the other one."""
        with _disable_current_modes():
            accumulated = [self._accumulated(*pair) for pair in (args, args[::-1])]
        total = func(*args)
        if all(other is None for other in accumulated):
            return total if has_alias(func) else self._shake(total, is_own=True)
        moved = total if has_alias(func) else self.shaken(total)
        with _disable_current_modes():
            for other in accumulated:
                if other is not None:
                    moved = _further(moved, other.to(total.dtype), total)
            return total.copy_(moved) if has_alias(func) else moved

    def _accumulated(self, product: Any, onto: Any) -> torch.Tensor | None:
        """Returns `onto` after each term of `product` was added to it; None if `product` is not a known matrix product,
        or if `onto` does not fit its shape."""
        if not all(isinstance(term, torch.Tensor) and term.is_floating_point() for term in (product, onto)):
            return None
        factors, versions = self._products.get(product, ((), None))
        if versions is None or versions != _versions(product, *factors):
            return None
        if onto.dim() > 2 or any(a not in (1, b) for a, b in zip(onto.shape[::-1], product.shape[::-1], strict=False)):
            return None
        return torch.addmm(*(value.to(self._accumulator) for value in (onto, *factors)))

    def _resummed(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> Any:
        """Returns `result` with the error of another order of summation."""
        results = [result] if isinstance(result, torch.Tensor) else list(result)
        if not all(_is_inexact(one) for one in results if one is not None):
            return result
        squares = func(*_squared(args), **_squared_factors(kwargs))
        squares = [squares] if isinstance(result, torch.Tensor) else squares
        moved = [
            None if one is None else self._moved(one, square / count if func in _MEANS else square, count)
            for one, square, count in zip(results, squares, _SUMS[func](args, results[0]), strict=True)
        ]
        at = _CHAINED.get(func)
        if at is not None and (one := moved[at]) is not None:
            moved[at] = _further(one, _chained(func, args, results[at], self._accumulator), results[at])
        return moved[0] if isinstance(result, torch.Tensor) else tuple(moved)

    def _moved(self, total: torch.Tensor, squares: torch.Tensor, count: int) -> torch.Tensor:
        """Returns `total`, sums of `count` terms each, with noise. squares: the sums of the squared terms."""
        if count <= _SHORT:
            return self.shaken(total)
        growth = math.sqrt(math.sqrt(count) / 6)
        size = total.abs()
        walk = size.square().add_(squares).sqrt_().mul_(self._sum_eps * growth)
        moved = total + torch.maximum(walk, size.mul_(self._eps), out=walk).mul_(self._signs(total))
        return torch.where(total.isinf(), total, moved)

    def _signs(self, like: torch.Tensor) -> torch.Tensor:
        """Returns random ones and minus ones. Takes them from the bits of 64-bit random numbers if many are needed,
        which is fast."""
        if like.numel() < _MANY:
            ones = torch.randint(0, 2, like.shape, generator=self._generator, dtype=torch.int8)
            return (ones * 2 - 1).to(like.device)
        numbers = torch.empty(-(-like.numel() // 64), dtype=torch.int64)
        drawn = numbers.random_(-(1 << 63), None, generator=self._generator).view(torch.int8)
        bits = drawn[:, None] << torch.arange(8, dtype=torch.int8)
        signs = bits.view(-1)[: like.numel()].bitwise_right_shift_(7).bitwise_or_(1)
        return signs.view(like.shape).to(like.device)


def _further(moved: torch.Tensor, other: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Returns, element by element, the one of two results that is further away from `total`."""
    return torch.where((other - total).abs() > (moved - total).abs(), other, moved)


def _versions(*tensors: torch.Tensor) -> list[int] | None:
    """Returns each tensor's version counter; None if one is an inference tensor, which has no counter."""
    return None if any(tensor.is_inference() for tensor in tensors) else [version_of(tensor) for tensor in tensors]


def _chained(func: Any, args: Sequence[Any], total: torch.Tensor, precision: torch.dtype) -> torch.Tensor:
    """Returns the sum of the first argument's elements with few accumulators; `total` for short or complex sums."""
    terms = args[0]
    count = terms.numel() // max(total.numel(), 1)
    if count <= _SHORT or not terms.is_floating_point():
        return total
    dims = list(range(terms.dim()))
    if func not in _PLAIN_SUMS:
        dims.remove(1)
    elif len(args) > 1 and args[1]:
        dims = [d % terms.dim() for d in args[1]]
    rows = terms.to(precision).movedim(dims, list(range(len(dims)))).reshape(count, -1).contiguous()
    is_chunked = func in _PLAIN_SUMS and count > _CHAIN
    chained = _in_order(rows, _CHUNK if is_chunked else count).to(total.dtype).reshape(total.shape)
    return chained / count if func in _MEANS else chained


def _in_order(rows: torch.Tensor, longest: int) -> torch.Tensor:
    """Returns the sums of columns. One accumulator adds up to `longest` terms in sequence.

    embedding_bag adds its terms like that, in a hundredth of the time that a loop takes.
    """
    order = torch.arange(len(rows), dtype=torch.int32, device=rows.device)
    return functional.embedding_bag(order, rows, order[::longest].contiguous(), mode="sum").sum(0)


def _var_mean(
    x: torch.Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes variance and mean in two passes: the mean, and the sum of squared distances from it."""
    dims = list(dim) if dim else list(range(x.dim()))
    mean = x.mean(dims, keepdim=True)
    count = math.prod(x.shape[d] for d in dims)
    squares = (x - mean).abs().square().sum(dims, keepdim=keepdim)
    freedom = max(count - (1 if correction is None else correction), 0)
    return squares / freedom, mean if keepdim else x.mean(dims)


def _var(x: torch.Tensor, dim: Sequence[int] | None = None, **options: Any) -> torch.Tensor:
    return _var_mean(x, dim, **options)[0]


def _std(x: torch.Tensor, dim: Sequence[int] | None = None, **options: Any) -> torch.Tensor:
    return _var(x, dim, **options).sqrt()


def _std_mean(x: torch.Tensor, dim: Sequence[int] | None = None, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    variance, mean = _var_mean(x, dim, **options)
    return variance.sqrt(), mean


@functools.cache
def _parts(func: Any) -> Callable[..., Any] | None:
    """Returns an operator as a function of elementary operators; None for elementary operators, views and random ones.

    Autograd normally decomposes composite operators. They reach a mode undecomposed in inference mode and if a
    decomposition below autograd calls them: GroupNorm's and LayerNorm's decompositions call ``var_mean.dim``.
    """
    parts = _decompositions().get(func)
    if parts is None and operators.is_composite(func) and not has_alias(func) and RANDOM not in func.tags:
        parts = operators.composite_kernel(func)
    return parts


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    own: dict[Any, Callable[..., Any]] = {
        aten.var_mean.correction: _var_mean,
        aten.var.correction: _var,
        aten.std.correction: _std,
        aten.std_mean.correction: _std_mean,
    }
    return {**get_decompositions(_COMPOUND), **own}


def _memory(tensor: torch.Tensor) -> int:
    return storage_of(tensor)


def _is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _squared(args: Any) -> Any:
    def squared(value: torch.Tensor) -> torch.Tensor:
        return value.abs().square() if value.is_complex() else value.square() if _is_inexact(value) else value

    return tree_map_only(torch.Tensor, squared, args)


def _squared_factors(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {key: value * value if key in ("alpha", "beta") else value for key, value in kwargs.items()}
