# SPDX-License-Identifier: Apache-2.0
"""Extreme numbers for the gate: NaN, infinities and overflow must appear where eager has them.

A user's training reacts to them: GradScaler skips a step whose gradients are not finite, and a check for NaN ends a
run. A formula that is right for ordinary numbers may lose them, as ``where(x <= 3, g * x, g)`` loses a NaN in x, and a
chain of float16 operators that is computed in float32 does not overflow. `extremes_problem` plants such numbers at
random places of the inputs, and compares where the results are not finite. A sum of
large numbers may overflow in one order of its terms and not in another: a difference that eager itself shows, with its
sums in the other direction, does not count. One thread; modes belong to one run.
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
"""Few places, and so that most rows of a batch stay ordinary: after a mean over a batch with a NaN all is NaN."""


def extremes_problem(
    candidate: Region,
    reference: Region,
    inputs: Sequence[Any],
    tangents: Sequence[Tangents],
    random: RandomState,
    seed: int,
) -> str | None:
    """The first result of `candidate` that is finite at other places than `reference`'s, as a sentence, or None.

    Args:
        tangents: gradients of the outputs; the first set is used.
        random: the generators' state to start each run from.
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
        return None  # eager itself refuses such numbers
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
    """By name, the tensors that are not finite at other places than eager's."""
    mine, theirs = run.numbers(0), eager.numbers(0)
    pairs = {name: (mine[name], theirs[name]) for name in mine if name in theirs and _has_limits(mine[name])}
    problems = {name: find(*pair) for name, pair in pairs.items()}
    return {name: problem for name, problem in problems.items() if problem is not None}


def _problem_of_places(candidate: torch.Tensor, eager: torch.Tensor) -> str | None:
    """NaN in the place of an infinity, and the reverse, are no difference here. Eager's own vector and scalar code
    differ in that, for gelu say, and a sum of infinities of both signs depends on how its terms are grouped."""
    mine, theirs = ~candidate.isfinite(), ~eager.isfinite()
    if torch.equal(mine, theirs):
        return None
    return f"is not finite at {int(mine.sum())} places, where eager is at {int(theirs.sum())}, or elsewhere"


_LARGE_NUMBERS = "large numbers"
_NAN = "NaN"
_KINDS = (_NAN, "infinity", _LARGE_NUMBERS)
_LARGE = 1000.0
"""``exp`` overflows, sums of squares do not: where those do depends on the formula of a normalisation."""


def _values(kind: str, dtype: torch.dtype) -> list[float]:
    limits = torch.finfo(dtype)
    denormal = limits.smallest_normal / 4
    large = limits.max if dtype == torch.float16 else _LARGE
    return {
        _NAN: [math.nan],
        "infinity": [math.inf, -math.inf, denormal, -denormal],
        _LARGE_NUMBERS: [large],  # of one sign: sums of both overflow or not by how their terms are grouped
    }[kind]


_VECTORS = 64
"""Elements behind the last multiple of this number are left alone: eager runs scalar code for them, which treats NaN in
another way than its vector code does."""


class _Planted:
    """Puts the numbers of one kind at seeded places."""

    def __init__(self, kind: str, inputs: Sequence[Any], seed: int) -> None:
        self._kind = kind
        self._generator = torch.Generator().manual_seed(seed)
        self._in_parameters = not any(
            _has_limits(value) and not isinstance(value, torch.nn.Parameter) for value in inputs
        )

    def in_input(self, flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The memory of an input. Parameters are left alone where something else can carry the numbers: one NaN in a
        weight makes a whole column NaN."""
        if isinstance(like, torch.nn.Parameter) and not self._in_parameters:
            return flat
        return self._plant(flat)

    def in_tangent(self, tangent: torch.Tensor) -> torch.Tensor:
        """A gradient of an output. Only float16 overflows there in ordinary training. NaN would show on which side of a
        jump, as relu's, rounding has put an element."""
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
"""The place of the left factor among the arguments."""
_SUMS = (aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim)


class _Reversed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds the terms of sums and products in the other direction."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS:
            at = _PRODUCTS[func]
            args = (*args[:at], args[at].flip(-1), args[at + 1].flip(-2), *args[at + 2 :])
        elif func in _SUMS:
            dims = args[1] if len(args) > 1 and args[1] is not None else range(args[0].dim())
            args = (args[0].flip(tuple(dims) or tuple(range(args[0].dim()))), *args[1:])
        return func(*args, **(kwargs or {}))
