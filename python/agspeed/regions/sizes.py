# SPDX-License-Identifier: Apache-2.0
"""Makes inputs of other sizes than the captured ones, for graphs with symbolic sizes.

`other_sizes` finds a smaller and a larger size, preferably odd, for each symbol, within the known ranges and guards. It
runs when the graph is captured, because a candidate's compile may add guards later that nothing checks. `resized` cuts
off or repeats the captured data to such sizes, so that labels and indices stay valid. The functions are stateless;
`SizedRunner` widens its ranges. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch

from agspeed.backends.base import Runner
from agspeed.torch_compat.shapes import ShapeEnv, detect_fake_mode

InputSizes = list[Any]
"""For each input of a graph: None (as captured), an integer, or [sizes, strides] of a tensor. Can be sent as JSON."""

_STEPS = (2, 4, 8, 16, 32, 64)


def other_sizes(example_inputs: Sequence[Any]) -> list[InputSizes]:
    """Returns up to two sets of input sizes, one smaller and one larger than captured; [] without symbols."""
    symbols = sorted({s for value in example_inputs for e in _expressions(value) for s in e.free_symbols}, key=str)
    if not symbols:
        return []
    fake_mode = detect_fake_mode(list(example_inputs))
    env = None if fake_mode is None else fake_mode.shape_env
    if env is None or any(symbol not in env.backed_var_to_val for symbol in symbols):
        return []
    captured = {symbol: int(env.backed_var_to_val[symbol]) for symbol in symbols}
    found = []
    for direction in (_smaller, _larger):
        chosen = dict(captured)
        for symbol, size in captured.items():
            trials = ({**chosen, symbol: other} for other in direction(size))
            chosen = next((trial for trial in trials if _is_allowed(env, trial)), chosen)
        if chosen != captured:
            found.append([_at(value, chosen) for value in example_inputs])
    return found


def resized(sample: Sequence[Any], sizes: InputSizes) -> list[Any]:
    """Returns inputs of the given sizes with the data of `sample`. Raises: ValueError for tensors that cannot be
    repeated."""
    return [_resized(value, size) for value, size in zip(sample, sizes, strict=True)]


class SizedRunner:
    """Runs a candidate within the powers of two around its checked sizes, and the graph itself at other sizes.

    The first call outside the ranges checks the candidate with that call's inputs. If it passes, the ranges grow.
    """

    def __init__(
        self, runner: Runner, eager: Runner, checked: Sequence[Mapping[int, int]], check: Callable[..., bool | None]
    ) -> None:
        """Args:
        checked: sets of sizes that passed: {position of the integer input: size}.
        check: ``check(runner, inputs)`` returns whether the candidate passes, or None if it cannot be checked now.
        """
        self._runner, self._eager, self._check = runner, eager, check
        self._ranges = {position: _bucket(size) for position, size in checked[0].items()}
        self._refused: set[tuple[tuple[int, int], ...]] = set()
        self.code_digest: str | None = getattr(runner, "code_digest", None)
        for sizes in checked[1:]:
            self._widen(sizes)

    def watch(self, on_failure: Callable[[Exception], None]) -> None:
        """Passes `on_failure` to the candidate, if it supports `watch`."""
        watch = getattr(self._runner, "watch", None)
        if watch is not None:
            watch(on_failure)

    def __call__(self, *args: Any) -> Sequence[Any]:
        for position, (low, high) in self._ranges.items():
            if not low <= args[position] <= high:
                return self._elsewhere(args)
        return self._runner(*args)

    def _elsewhere(self, args: Sequence[Any]) -> Sequence[Any]:
        sizes = {position: int(args[position]) for position in self._ranges}
        buckets = tuple(_bucket(size) for size in sizes.values())
        passed = None if buckets in self._refused else self._check(self._runner, args)
        if passed:
            self._widen(sizes)
            return self._runner(*args)
        if passed is False:
            self._refused.add(buckets)
        return self._eager(*args)

    def _widen(self, sizes: Mapping[int, int]) -> None:
        for position, size in sizes.items():
            low, high = self._ranges[position]
            first, last = _bucket(size)
            self._ranges[position] = min(low, first), max(high, last)


def _bucket(size: int) -> tuple[int, int]:
    """Returns the range between powers of two that contains a size: (8, 15) for 12."""
    low = 1 << max(size.bit_length() - 1, 0)
    return low, 2 * low - 1


def _smaller(size: int) -> Iterable[int]:
    half = size // 2
    yield from (n for n in (half | 1, half) if 2 <= n < size)
    yield from (n for n in (-(-half // step) * step for step in _STEPS) if 2 <= n < size)


def _larger(size: int) -> Iterable[int]:
    yield from (2 * size + 1, size + 1, 2 * size)
    yield from ((size // step + 1) * step for step in _STEPS)


def _is_allowed(env: ShapeEnv, sizes: Mapping[sympy.Symbol, int]) -> bool:
    values = {**env.backed_var_to_val, **{symbol: sympy.Integer(size) for symbol, size in sizes.items()}}
    if any(size not in env.var_to_range[symbol] for symbol, size in sizes.items() if symbol in env.var_to_range):
        return False
    return all(env.replace(guard.expr).xreplace(values) != sympy.false for guard in env.guards)


def _expressions(value: Any) -> list[sympy.Expr]:
    """Returns the symbolic sizes and strides of an input."""
    numbers = [*value.shape, *value.stride()] if isinstance(value, torch.Tensor) else [value]
    return [number.node.expr for number in numbers if isinstance(number, torch.SymInt)]


def _at(value: Any, sizes: Mapping[sympy.Symbol, int]) -> Any:
    def number(symbolic: Any) -> int:
        return int(symbolic.node.expr.xreplace(sizes)) if isinstance(symbolic, torch.SymInt) else int(symbolic)

    if not _expressions(value):
        return None
    if isinstance(value, torch.Tensor):
        return [[number(size) for size in value.shape], [number(stride) for stride in value.stride()]]
    return number(value)


def _resized(value: Any, size: Any) -> Any:
    if size is None or not isinstance(value, torch.Tensor):
        return value if size is None else size
    shape, strides = size
    data = value.detach()
    if data.numel() == 0 or data.layout is not torch.strided:
        raise ValueError(f"an input of shape {tuple(data.shape)} and layout {data.layout} has nothing to repeat")
    result = torch.empty_strided(shape, strides, dtype=data.dtype, device=data.device)
    target = result
    for dim, (length, stride) in enumerate(zip(shape, strides, strict=True)):
        if stride == 0:  # an expanded dimension: one element in memory
            target, length = target.narrow(dim, 0, 1), 1
        data = data.index_select(dim, torch.arange(length, device=data.device) % data.shape[dim])
    target.copy_(data)
    return result.requires_grad_(value.requires_grad)
