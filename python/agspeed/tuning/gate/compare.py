# SPDX-License-Identifier: Apache-2.0
"""Compares numbers: checks that a candidate's tensor is about as close to the float64 reference as eager's own.

Let c be the candidate's error, r the reference and u the step of the element type (``torch.finfo(dtype).eps``). Let e
be the yardstick: the largest of eager's own error and the changes that rounding noise causes in several runs (`noise`).
A tensor passes if

    max |c|  <=  4 max |e|  +  FLOOR_MAX u max |r|          and          rms c  <=  2 rms e  +  FLOOR_RMS u rms r

with the floors of `TOLERANCES`. One run is not enough for a yardstick: if few roundings dominate (for example, all
gradients pass through a mean over 16 elements), all errors of a run are multiples of one random number, which is often
small. If the reference lies below the noise (rms r <= rms e, for example a gradient that cancels to zero), the tensor
carries no information and depends only on the order of summation: the factors are then `FACTOR_BELOW_NOISE`. In
bfloat16 and float16, u is large. There the first rule also applies to every element, with its own |r| and the yardstick
of elements of similar size, so that a large element cannot hide a wrong small one. NaN and infinities must be at
eager's positions. Integers and booleans must be equal. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    max, eager_max and allowed_max are fractions of the largest reference element, or of the largest yardstick error if
    that is larger. rms, eager_rms and allowed_rms are fractions of the corresponding RMS values. problem is a clause
    that follows the name, or None.
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


@dataclass(frozen=True)
class Deviation:
    """The distance of one run's tensor from the reference: its maximum, its RMS, and in low precision each element's.

    steps: the RMS in steps of the element type at the reference's size; a few for well-conditioned results.
    """

    max: float
    rms: float
    steps: float = 0.0
    elements: torch.Tensor | None = None


def deviation(value: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor) -> Deviation:
    """Returns the deviation of a noisy run from the reference, over the elements at which eager is finite. Requires:
    equal shapes."""
    if not (eager.is_floating_point() or eager.is_complex()):
        return Deviation(0.0, 0.0)
    off = (_real(value) - _real(reference)).abs().nan_to_num(0.0, 0.0, 0.0).masked_fill(~_real(eager).isfinite(), 0.0)
    if off.numel() == 0:
        return Deviation(0.0, 0.0)
    step = torch.finfo(eager.dtype).eps * _rms(_real(reference).nan_to_num(0.0, 0.0, 0.0))
    steps = _rms(off) / step if step else float("inf")
    return Deviation(float(off.max()), _rms(off), steps, off if eager.dtype in _LOW else None)


def compare(
    name: str,
    candidate: torch.Tensor,
    eager: torch.Tensor,
    reference: torch.Tensor,
    noise: Sequence[Deviation] = (),
) -> TensorError:
    """Judges one tensor. Requires: equal shapes, and candidate and eager of one element type.

    Args:
        reference: the same tensor computed in float64 (equal to eager for integers).
        noise: deviations of runs of the reference with rounding noise in every operator; they widen the yardstick.
    """
    if not (candidate.is_floating_point() or candidate.is_complex()):
        return _exact(name, candidate, eager)
    pattern = pattern_problem(candidate, eager)
    low = candidate.dtype
    candidate, eager, reference = _real(candidate), _real(eager), _real(reference)
    finite = eager.isfinite() & candidate.isfinite() & reference.isfinite()
    c, e, r = candidate[finite], eager[finite], reference[finite]
    if r.numel() == 0:
        return TensorError(name, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, pattern or _tail_problem(candidate, eager, finite))
    own = (e - r).abs()
    yard = _Yard(Deviation(float(own.max()), _rms(own), elements=own), noise, finite)
    return _judge(name, low, (c - r).abs(), yard, r.abs(), pattern or _tail_problem(candidate, eager, finite))


def compare_exactly(name: str, candidate: torch.Tensor, eager: torch.Tensor) -> TensorError:
    """Judges one tensor by bits. All NaNs equal each other, with any payload."""
    if same_bits(candidate, eager):
        return TensorError(name, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    if candidate.dtype.is_floating_point and torch.equal(candidate.isnan(), eager.isnan()):
        candidate, eager = candidate.masked_fill(candidate.isnan(), 0.0), eager.masked_fill(eager.isnan(), 0.0)
    return _exact(name, candidate, eager)


class _Yard:
    """The yardstick of one tensor: the larger of eager's own error and the noise."""

    def __init__(self, own: Deviation, noise: Sequence[Deviation], finite: torch.Tensor) -> None:
        self.own, self._noise, self._finite = own, noise, finite
        self.max = max(each.max for each in (own, *noise))
        self.rms = max(each.rms for each in (own, *noise))

    def elements(self) -> torch.Tensor:
        """Returns the largest deviation of each element. Requires: a tensor in low precision."""
        widest = self.own.elements
        assert widest is not None
        for each in self._noise:
            if each.elements is not None:
                widest = torch.maximum(widest, each.elements[self._finite])
        return widest

    def origin(self, factor: float, value: float, own: float) -> str:
        """Returns text that explains a bound. value: the yardstick's figure; own: eager's own."""
        if value <= own or not self._noise:
            return f"{factor:.0f} times eager's error and a step of the result"
        runs = f"the rounding error of {len(self._noise)} runs of the reference"
        return f"{factor:.0f} times {runs}" + (", zero but for cancellation" if factor == FACTOR_BELOW_NOISE else "")


def _judge(
    name: str, dtype: torch.dtype, error: torch.Tensor, yard: _Yard, size: torch.Tensor, problem: str | None
) -> TensorError:
    tolerance = TOLERANCES.get(dtype, TOLERANCES[torch.float32])
    eps, tiny = torch.finfo(dtype).eps, torch.finfo(dtype).tiny
    largest, typical = float(size.max()), _rms(size)
    is_noise = typical <= yard.rms
    factor_max, factor_rms = (FACTOR_BELOW_NOISE,) * 2 if is_noise else (FACTOR_MAX, FACTOR_RMS)
    allowed_max = factor_max * yard.max + tolerance.floor_max * eps * largest + tiny
    allowed_rms = factor_rms * yard.rms + tolerance.floor_rms * eps * typical + tiny
    worst, rms = float(error.max()), _rms(error)
    # If the result is mathematically zero, errors are shown as fractions of the noise.
    unit, mean = max(largest, yard.max) or 1.0, max(typical, yard.rms) or 1.0
    if problem is None and worst > allowed_max:
        problem = f"is off by up to {worst / unit:.1e} of its largest element, eager by {yard.own.max / unit:.1e}; "
        problem += f"allowed is {allowed_max / unit:.1e}, {yard.origin(factor_max, yard.max, yard.own.max)}"
    if problem is None and rms > allowed_rms:
        problem = f"is off by {rms / mean:.1e} of its size on average (RMS), eager by {yard.own.rms / mean:.1e}; "
        problem += f"allowed is {allowed_rms / mean:.1e}, {yard.origin(factor_rms, yard.rms, yard.own.rms)}"
    if problem is None and dtype in _LOW:
        is_near = _local_rule(error, yard.elements(), size, tolerance.floor_max * eps, largest)
        problem = None if is_near else "has an element that is off by more than elements of its size may be"
    return TensorError(
        name,
        worst / unit,
        rms / mean,
        yard.own.max / unit,
        yard.own.rms / mean,
        allowed_max / unit,
        allowed_rms / mean,
        problem,
    )


def _local_rule(error: torch.Tensor, yard: torch.Tensor, size: torch.Tensor, relative: float, largest: float) -> bool:
    """Applies the max rule to each element: its yardstick is the largest one among elements of its size or smaller."""
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


def pattern_problem(candidate: torch.Tensor, eager: torch.Tensor) -> str | None:
    """Returns how the positions of NaN and infinities differ, as a clause that follows the tensor's name, or None."""
    if not torch.equal(candidate.isnan(), eager.isnan()):
        return f"has {int(candidate.isnan().sum())} NaNs where eager has {int(eager.isnan().sum())}, or elsewhere"
    candidate, eager = _real(candidate), _real(eager)
    infinite = eager.isinf()
    if not torch.equal(candidate.isinf(), infinite) or not torch.equal(candidate[infinite], eager[infinite]):
        return "has infinities where eager has none, or lacks some, or with another sign"
    return None


def _tail_problem(candidate: torch.Tensor, eager: torch.Tensor, finite: torch.Tensor) -> str | None:
    """Compares elements that are finite in eager but not in the reference. They have no yardstick and must be near
    eager's. Returns a clause that follows the tensor's name, or None."""
    rest = eager.isfinite() & candidate.isfinite() & ~finite
    if torch.allclose(candidate[rest], eager[rest], rtol=1e-2, atol=0.0):
        return None
    return "differs from eager where float64 overflows"


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a flat float64 copy; complex numbers become pairs."""
    tensor = tensor.detach()
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).to(torch.float64).reshape(-1)


def _rms(tensor: torch.Tensor) -> float:
    return float(tensor.square().mean().sqrt()) if tensor.numel() else 0.0
