# SPDX-License-Identifier: Apache-2.0
"""Checks candidates with extreme numbers: NaN, infinities and overflow must appear at the same positions as in eager.

Training code reacts to them: GradScaler skips a step whose gradients are not finite, and a NaN check may end a run. A
formula that is right for ordinary numbers may lose them. For example, ``where(x <= 3, g * x, g)`` loses a NaN in x, and
a chain of float16 operators that is computed in float32 does not overflow. `extremes_problem` plants such numbers at
random positions in the inputs and compares the positions at which the results are not finite. A sum of large numbers
may overflow in one order of its terms and not in another. So a difference does not count if eager shows it too when
its sums run in reverse order. One thread; modes belong to one run.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from agspeed.devices.random_state import RandomState
from agspeed.torch_compat.modes import TorchDispatchMode
from agspeed.tuning.gate.compare import TOLERANCES, pattern_problem
from agspeed.tuning.gate.inputs import InputCopies
from agspeed.tuning.gate.run import Region, Run, Tangents, execute

aten = torch.ops.aten
_PER_PLACE = 256
_MAX_PLACES = 16
"""Few positions, so that most rows of a batch stay ordinary: one NaN makes a mean over the whole batch NaN."""


def extremes_problem(
    candidate: Region,
    reference: Region,
    inputs: Sequence[Any],
    tangents: Sequence[Tangents],
    random: RandomState,
    seed: int,
) -> str | None:
    """Returns the first result of `candidate` that is finite at other positions than `reference`'s, as a sentence, or
    None.

    Args:
        tangents: gradients of the outputs; the first set is used.
        random: the state of the random generators at the start of each run.
    """

    for kind in _KINDS:
        planted = _Planted(kind, inputs, seed)
        data = InputCopies(inputs, change=planted.in_input).values
        chosen = [{i: planted.in_tangent(value) for i, value in one.items()} for one in tangents[:1]]
        problem = _problem(candidate, reference, data, chosen, random, kind)
        if problem is not None:
            return f"with {kind} among its inputs {problem}"
    return None


def _problem(
    candidate: Region,
    reference: Region,
    data: Sequence[Any],
    tangents: Sequence[Tangents],
    random: RandomState,
    kind: str,
) -> str | None:
    def run(region: Region, modes: Sequence[contextlib.AbstractContextManager[Any]] = ()) -> Run:
        random.restore()
        return execute(region, InputCopies(data), tangents, modes=modes)

    try:
        eager = run(reference)
    except Exception:
        return None  # eager itself raises on such numbers
    try:
        found = run(candidate)
    except Exception as error:
        return f"it raised {type(error).__name__}, eager does not"
    find = pattern_problem if kind == _NAN else _problem_of_places
    for tensor, problem in _differences(found, eager, find).items():
        reversed_sums: Any = _Reversed
        depends_on_order = kind == _LARGE_NUMBERS
        if not (depends_on_order and tensor in _differences(run(reference, [reversed_sums()]), eager, find)):
            return f"{tensor} {problem}"
    return None


def _differences(run: Run, eager: Run, find: Callable[..., str | None]) -> dict[str, str]:
    """Returns {tensor name: problem} for tensors whose non-finite positions differ from eager's."""
    mine, theirs = run.numbers(0), eager.numbers(0)
    pairs = {name: (mine[name], theirs[name]) for name in mine if name in theirs and _has_limits(mine[name])}
    problems = {name: find(*pair) for name, pair in pairs.items()}
    return {name: problem for name, problem in problems.items() if problem is not None}


def _problem_of_places(candidate: torch.Tensor, eager: torch.Tensor) -> str | None:
    """Returns a clause if the positions of non-finite numbers differ, or None. NaN and infinity count as equal here:
    eager's own vector and scalar code differ in this, for example for gelu, and a sum of infinities of both signs
    depends on the grouping of its terms."""
    mine, theirs = ~candidate.isfinite(), ~eager.isfinite()
    if torch.equal(mine, theirs):
        return None
    return f"is not finite at {int(mine.sum())} places, where eager is at {int(theirs.sum())}, or elsewhere"


_LARGE_NUMBERS = "large numbers"
_NAN = "NaN"
_KINDS = (_NAN, "infinity", _LARGE_NUMBERS)
_LARGE = 1000.0
"""``exp`` of this overflows. Sums of its squares do not: their overflow would depend on the formula of a
normalisation."""


def _values(kind: str, dtype: torch.dtype) -> list[float]:
    limits = torch.finfo(dtype)
    denormal = limits.smallest_normal / 4
    large = limits.max if dtype == torch.float16 else _LARGE
    return {
        _NAN: [math.nan],
        "infinity": [math.inf, -math.inf, denormal, -denormal],
        _LARGE_NUMBERS: [large],  # one sign only: with both signs, overflow depends on how a sum groups its terms
    }[kind]


_VECTORS = 64
"""Elements after the last multiple of this number stay ordinary: eager runs scalar code for them, which treats NaN
differently from its vector code."""


class _Planted:
    """Puts numbers of one kind at random positions that follow from a seed."""

    def __init__(self, kind: str, inputs: Sequence[Any], seed: int) -> None:
        self._kind = kind
        self._generator = torch.Generator().manual_seed(seed)
        self._in_parameters = not any(
            _has_limits(value) and not isinstance(value, torch.nn.Parameter) for value in inputs
        )

    def in_input(self, flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Returns the memory of an input with numbers planted. Parameters stay ordinary if another input can carry the
        numbers: one NaN in a weight makes a whole column NaN."""
        if isinstance(like, torch.nn.Parameter) and not self._in_parameters:
            return flat
        return self._plant(flat)

    def in_tangent(self, tangent: torch.Tensor) -> torch.Tensor:
        """Returns an output's gradient, with large numbers planted in float16 alone: other types do not overflow there
        in ordinary training. NaN is never planted: it would show on which side of a jump (such as relu's) rounding put
        an element."""
        if tangent.dtype != torch.float16 or self._kind != _LARGE_NUMBERS:
            return tangent
        return self._plant(tangent.reshape(-1)).reshape(tangent.shape)

    def _plant(self, flat: torch.Tensor) -> torch.Tensor:
        if not _has_limits(flat) or flat.numel() == 0:
            return flat
        count = min(1 + flat.numel() // _PER_PLACE, _MAX_PLACES)
        in_vectors = flat.numel() - flat.numel() % _VECTORS or flat.numel()
        places = torch.randint(in_vectors, (count,), generator=self._generator).to(flat.device)
        values = torch.tensor(_values(self._kind, flat.dtype), dtype=flat.dtype, device=flat.device)
        planted = flat.clone()
        planted[places] = values.repeat(-(-count // values.numel()))[:count]
        return planted


def _has_limits(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in TOLERANCES


_PRODUCTS = {aten.mm.default: 0, aten.bmm.default: 0, aten.addmm.default: 1, aten.baddbmm.default: 1}
"""{operator: the position of the left factor among its arguments}."""
_SUMS = (aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim)


class _Reversed(TorchDispatchMode):
    """Adds the terms of sums and matrix products in reverse order."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS:
            at = _PRODUCTS[func]
            args = (*args[:at], args[at].flip(-1), args[at + 1].flip(-2), *args[at + 2 :])
        elif func in _SUMS:
            dims = args[1] if len(args) > 1 and args[1] is not None else range(args[0].dim())
            args = (args[0].flip(tuple(dims) or tuple(range(args[0].dim()))), *args[1:])
        return func(*args, **(kwargs or {}))
