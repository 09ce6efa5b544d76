# SPDX-License-Identifier: Apache-2.0
"""Numbers against numbers: is a candidate's tensor as close to the float64 reference as eager's own?

With c the candidate's error, e the yardstick (eager's error, or the change that rounding noise in every operator
causes, whichever is larger: `noise`), r the reference and u the step of the element type
(``torch.finfo(dtype).eps``), a tensor passes if

    max |c|  <=  4 max |e|  +  FLOOR_MAX u max |r|          and          rms c  <=  2 rms e  +  FLOOR_RMS u rms r

with the floors of `TOLERANCES`. Where the reference lies below the noise (rms r <= rms e: a gradient that is zero but
for cancellation), the tensor says nothing and depends on the order of summation alone: the factors are then
`FACTOR_BELOW_NOISE`. In bfloat16 and float16, where u is large, the first rule is applied to every element
with its own |r| and the yardstick of elements of similar size, so that a wrong small element does not hide below a
large one. NaN and infinities must be where eager has them; integers and booleans must be equal. Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from agspeed.tuning.gate.inputs import same_bits


@dataclass(frozen=True)
class Tolerance:
    """Floors of the two rules, in units of the element type's eps."""

    floor_max: float
    floor_rms: float


TOLERANCES: dict[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(16, 4),
    torch.float32: Tolerance(16, 4),
    torch.bfloat16: Tolerance(1, 0.25),
    torch.float16: Tolerance(1, 0.25),
}
FACTOR_MAX = 4.0
FACTOR_RMS = 2.0
FACTOR_BELOW_NOISE = 32.0
_LOW = (torch.bfloat16, torch.float16)
_NEIGHBOURS = 64


@dataclass(frozen=True)
class TensorError:
    """Errors of one tensor against the reference, relative to the reference's own size.

    max and eager_max are fractions of the largest reference element, rms and eager_rms of the reference's RMS.
    """

    name: str
    max: float
    rms: float
    eager_max: float
    eager_rms: float
    allowed_max: float
    allowed_rms: float
    problem: str | None = None

    @property
    def ok(self) -> bool:
        return self.problem is None


def compare(
    name: str,
    candidate: torch.Tensor,
    eager: torch.Tensor,
    reference: torch.Tensor,
    noisy: torch.Tensor | None = None,
) -> TensorError:
    """Judges one tensor. Requires: equal shapes, and candidate and eager of one element type.

    Args:
        reference: the same tensor computed in float64 (equal to eager for integers).
        noisy: the reference with rounding noise in every operator; widens the yardstick.
    """
    if not (candidate.is_floating_point() or candidate.is_complex()):
        return _exact(name, candidate, eager)
    pattern = _pattern_problem(candidate, eager)
    low = candidate.dtype
    candidate, eager, reference = _real(candidate), _real(eager), _real(reference)
    finite = eager.isfinite() & candidate.isfinite() & reference.isfinite()
    c, e, r = candidate[finite], eager[finite], reference[finite]
    if r.numel() == 0:
        return TensorError(name, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, pattern or _tail_problem(candidate, eager, finite))
    error, yard = (c - r).abs(), (e - r).abs()
    if noisy is not None:
        yard = torch.maximum(yard, (_real(noisy)[finite] - r).abs().nan_to_num(0.0, 0.0, 0.0))
    return _judge(name, low, error, yard, r.abs(), pattern or _tail_problem(candidate, eager, finite))


def compare_exactly(name: str, candidate: torch.Tensor, eager: torch.Tensor) -> TensorError:
    """Judges one tensor by bits. NaNs equal each other whatever their payload."""
    if same_bits(candidate, eager):
        return TensorError(name, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    if candidate.dtype.is_floating_point and torch.equal(candidate.isnan(), eager.isnan()):
        candidate, eager = candidate.masked_fill(candidate.isnan(), 0.0), eager.masked_fill(eager.isnan(), 0.0)
    return _exact(name, candidate, eager)


def _judge(
    name: str, dtype: torch.dtype, error: torch.Tensor, yard: torch.Tensor, size: torch.Tensor, problem: str | None
) -> TensorError:
    tolerance = TOLERANCES.get(dtype, TOLERANCES[torch.float32])
    eps = torch.finfo(dtype).eps
    largest, typical = float(size.max()), _rms(size)
    tiny = torch.finfo(dtype).tiny
    is_noise = typical <= _rms(yard)
    factor_max, factor_rms = (FACTOR_BELOW_NOISE,) * 2 if is_noise else (FACTOR_MAX, FACTOR_RMS)
    allowed_max = factor_max * float(yard.max()) + tolerance.floor_max * eps * largest + tiny
    allowed_rms = factor_rms * _rms(yard) + tolerance.floor_rms * eps * typical + tiny
    worst, rms = float(error.max()), _rms(error)
    if problem is None and worst > allowed_max:
        problem = f"is off by up to {worst / (largest or 1.0):.1e} of its largest element"
    if problem is None and rms > allowed_rms:
        problem = f"is off by {rms / (typical or 1.0):.1e} of its size on average (RMS)"
    if problem is None and dtype in _LOW and not _local_rule(error, yard, size, tolerance.floor_max * eps, largest):
        problem = "has an element that is off by more than elements of its size may be"
    # Where the result is mathematically zero, errors are fractions of the noise.
    unit, mean = max(largest, float(yard.max())) or 1.0, max(typical, _rms(yard)) or 1.0
    return TensorError(
        name,
        worst / unit,
        rms / mean,
        float(yard.max()) / unit,
        _rms(yard) / mean,
        allowed_max / unit,
        allowed_rms / mean,
        problem,
    )


def _local_rule(error: torch.Tensor, yard: torch.Tensor, size: torch.Tensor, relative: float, largest: float) -> bool:
    """The max rule per element: the yardstick of an element is the largest among elements that are no larger."""
    order = size.argsort()
    running = yard[order].cummax(0).values
    index = (torch.arange(running.numel(), device=running.device) + _NEIGHBOURS).clamp_(max=running.numel() - 1)
    noise = 16 * torch.finfo(torch.float32).eps * largest
    return bool((error[order] <= FACTOR_MAX * running[index] + relative * size[order] + noise).all())


def _exact(name: str, candidate: torch.Tensor, eager: torch.Tensor) -> TensorError:
    if same_bits(candidate, eager):
        return TensorError(name, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    differs = int((candidate != eager).sum())
    problem = f"differs from eager in {differs} of {candidate.numel()} elements and has to be equal"
    c, e = _real(candidate), _real(eager)
    error = (c - e).abs().nan_to_num(float("inf"))
    unit, mean = float(e.abs().max()) or 1.0, _rms(e) or 1.0
    return TensorError(name, float(error.max()) / unit, _rms(error) / mean, 0.0, 0.0, 0.0, 0.0, problem)


def _pattern_problem(candidate: torch.Tensor, eager: torch.Tensor) -> str | None:
    if not torch.equal(candidate.isnan(), eager.isnan()):
        return f"has {int(candidate.isnan().sum())} NaNs where eager has {int(eager.isnan().sum())}, or elsewhere"
    candidate, eager = _real(candidate), _real(eager)
    infinite = eager.isinf()
    if not torch.equal(candidate.isinf(), infinite) or not torch.equal(candidate[infinite], eager[infinite]):
        return "has infinities where eager has none, or lacks some, or with another sign"
    return None


def _tail_problem(candidate: torch.Tensor, eager: torch.Tensor, finite: torch.Tensor) -> str | None:
    """Elements that are finite in eager but not in the reference have no yardstick: they must be near eager's."""
    rest = eager.isfinite() & candidate.isfinite() & ~finite
    if torch.allclose(candidate[rest], eager[rest], rtol=1e-2, atol=0.0):
        return None
    return "differs from eager where float64 overflows"


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """A flat float64 copy; complex numbers become pairs."""
    tensor = tensor.detach()
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).to(torch.float64).reshape(-1)


def _rms(tensor: torch.Tensor) -> float:
    return float(tensor.square().mean().sqrt()) if tensor.numel() else 0.0
