# SPDX-License-Identifier: Apache-2.0
"""The gate accepts correct code, rejects wrong code, and leaves no trace in the training process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from agspeed.tuning.gate import check as gate
from tests.python.tuning.gate.planted_mutants import MUTANTS, inputs, only_this_batch, region

pytestmark = [pytest.mark.smoke, pytest.mark.usefixtures("one_thread")]
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _check(candidate: gate.Region, *input_sets: list[Any]) -> gate.Verdict:
    """Returns the first verdict that is not "passed", else the last. Regions with symbolic sizes use several input
    sets."""
    verdicts = [gate.check(candidate, region, each) for each in input_sets]
    return next((verdict for verdict in verdicts if not verdict.accepted), verdicts[-1])


@pytest.mark.parametrize("name", MUTANTS)
def test_rejects_planted_mutant(name: str) -> None:
    verdict = _check(MUTANTS[name](), inputs(), inputs(batch=5, seed=1))
    assert verdict.outcome == "rejected", f"{name}: {verdict.reason}"
    assert verdict.reason
    assert verdict.to_dict()["verdict"] == "rejected"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_accepts_eager_itself(dtype: torch.dtype) -> None:
    verdict = _check(region, inputs(dtype), inputs(dtype, batch=5))
    assert verdict.accepted, verdict.reason
    assert verdict.reference == "float64"


def test_finds_a_mutant_that_is_wrong_only_at_another_batch_size() -> None:
    assert gate.check(only_this_batch, region, inputs(batch=12)).accepted
    assert gate.check(only_this_batch, region, inputs(batch=5)).outcome == "rejected"


def _reordered_sum(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x.reshape(-1, 8).sum(0).sum().reshape(()), x.flip(0).mean(0))


def _plain_sum(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x.sum(), x.mean(0))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_accepts_reordered_sums(dtype: torch.dtype) -> None:
    x = torch.randn(512, 16, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    verdict = gate.check(_reordered_sum, _plain_sum, [x])
    assert verdict.accepted, verdict.reason


def _block(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    normal = functional.layer_norm(x, (x.shape[-1],), weight, bias)
    return (functional.gelu(normal).softmax(-1),)


def _fused_block(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same mathematics in float32 throughout, as a fused kernel computes it."""
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    normal = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5) * weight.float() + bias.float()
    gelu = 0.5 * normal * (1 + torch.erf(normal * 0.7071067811865476))
    powers = (gelu - gelu.amax(-1, keepdim=True)).exp()
    return ((powers * powers.sum(-1, keepdim=True).reciprocal()).to(x.dtype),)


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
def test_accepts_fused_mathematics(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 96, generator=generator).to(dtype).requires_grad_()
    weight = torch.nn.Parameter((torch.randn(96, generator=generator) + 1).to(dtype))
    bias = torch.nn.Parameter(torch.randn(96, generator=generator).to(dtype))
    verdict = gate.check(_fused_block, _block, [x, weight, bias])
    assert verdict.accepted, verdict.reason
    assert not gate.check(_fused_block, _block, [x, weight, bias], gate.Policy(numerics="exact")).accepted


def _rounds(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x.to(torch.bfloat16).float() * 2,)


def test_rejects_dropped_rounding() -> None:
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    verdict = gate.check(lambda x: (x * 2,), _rounds, [x])
    assert verdict.outcome == "rejected", verdict.reason


def test_rejects_missing_nan_and_infinity() -> None:
    def logarithm(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.log(),)

    x = torch.tensor([1.0, -1.0, 0.0, 2.0])
    assert gate.check(logarithm, logarithm, [x]).accepted
    assert not gate.check(lambda x: (x.log().nan_to_num(nan=0.0),), logarithm, [x]).accepted
    assert not gate.check(lambda x: (x.log().clamp(min=-3e38),), logarithm, [x]).accepted
    assert not gate.check(lambda x: (x.log().abs(),), logarithm, [x]).accepted


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rejects_scaled_results_in_every_type(dtype: torch.dtype) -> None:
    factor = 1 + 8 * max(torch.finfo(dtype).eps, 1e-9)
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(0)).to(dtype)

    def scaled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((x.sigmoid().double() * factor).to(dtype),)

    verdict = gate.check(scaled, lambda x: (x.sigmoid(),), [x])
    assert verdict.outcome == "rejected", f"factor {factor}: {verdict.reason}"


def test_exact_numerics_admits_equal_bits_only() -> None:
    policy = gate.Policy(numerics="exact")
    assert gate.check(region, region, inputs(), policy).accepted
    assert not gate.check(_reordered_sum, _plain_sum, [torch.randn(512, 16)], policy).accepted
    signed_zero = gate.check(lambda x: (x * 0.0,), lambda x: (x * -0.0,), [torch.ones(3)], policy)
    assert signed_zero.outcome == "rejected"
    nan = torch.tensor([float("nan"), 1.0])
    assert gate.check(lambda x: (x + 0,), lambda x: (x.clone(),), [nan], policy).accepted


def test_off_accepts_and_says_so() -> None:
    verdict = gate.check(lambda *args: (), region, inputs(), gate.Policy(numerics="off"))
    assert verdict.accepted
    assert "unchecked" in verdict.reason
    assert verdict.to_dict()["numerics"] == "off"


def test_refuses_beyond_the_memory_budget() -> None:
    verdict = gate.check(region, region, inputs(batch=4096), gate.Policy(memory_budget_bytes=2**20))
    assert verdict.outcome == "not-run"
    assert not verdict.accepted
    assert "budget" in verdict.reason
    assert gate.check(region, region, inputs(), gate.Policy(memory_budget_bytes=2**20)).accepted


def test_leaves_the_process_as_it_was() -> None:
    values = inputs()
    values[1].grad = torch.ones_like(values[1])
    before = [value.detach().clone() for value in values]
    random_state = torch.get_rng_state()

    def rude(*args: Any) -> Any:
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        torch.set_grad_enabled(False)
        torch.set_autocast_enabled("cpu", True)
        raise RuntimeError

    assert gate.check(region, region, values).accepted
    assert not gate.check(rude, region, values).accepted
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.get_default_dtype() == torch.float32
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    for value, old in zip(values, before, strict=True):
        assert torch.equal(value, old)
    assert torch.equal(values[1].grad, torch.ones(8, 8))
    assert values[0].grad is None


def test_checks_forward_only_without_gradients() -> None:
    with torch.no_grad():
        verdict = gate.check(region, region, inputs())
    assert verdict.accepted, verdict.reason
    assert verdict.gradients == ()
    assert verdict.to_dict()["gradients"] is None


def test_works_under_autocast() -> None:
    x, weight, bias, *_ = inputs()

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (functional.linear(x, weight, bias).float().softmax(-1),)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        verdict = gate.check(linear, linear, [x, weight, bias])
        assert verdict.accepted, verdict.reason
        assert 1e-4 < verdict.forward[0].eager_rms < 1e-1
        wrong = gate.check(lambda x, w, b: (linear(x, w, b)[0].roll(1, 0),), linear, [x, weight, bias])
    assert wrong.outcome == "rejected"


def test_copies_keep_strides_sharing_and_identity() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    expanded = torch.ones(3, 1).expand(3, 5)

    def observe(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, ...]:
        assert a.stride() == (1, 6)
        assert c.stride() == (1, 0)
        assert a is d
        a.add_(1)
        return (b * 1, c.sum(0))

    arguments = [base.t(), base[1:, 2:], expanded, None]
    arguments[3] = arguments[0]
    verdict = gate.check(observe, observe, arguments)
    assert verdict.accepted, verdict.reason
    assert [error.name for error in verdict.forward][-3:] == [
        "input 0 after the call",
        "input 1 after the call",
        "input 3 after the call",
    ]


def test_in_place_on_an_activation() -> None:
    def scaled(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.mul_(2)
        return (x.exp() * y,)

    arguments = [torch.randn(4, 4, requires_grad=True) * 1, torch.randn(4, requires_grad=True)]
    assert gate.check(scaled, scaled, arguments).accepted
    assert not gate.check(lambda x, y: (x.mul(2).exp() * y,), scaled, arguments).accepted


def test_integers_sizes_and_none_pass_through() -> None:
    def region_of_sizes(x: torch.Tensor, size: int, nothing: None) -> tuple[Any, ...]:
        return x.view(size, -1) * 2, size + 1, nothing, torch.arange(size)

    assert gate.check(region_of_sizes, region_of_sizes, [torch.randn(12), 3, None]).accepted
    wrong = gate.check(
        lambda x, n, _: (x.view(n, -1) * 2, n, None, torch.arange(n)), region_of_sizes, [torch.randn(12), 3, None]
    )
    assert wrong.outcome == "rejected"


def test_unused_outputs_may_give_zeros_instead_of_no_gradient() -> None:
    class Zeros(torch.autograd.Function):
        """Computes both products in one node, as a compiled region does: absent tangents become zeros."""

        @staticmethod
        def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
            return a * 2, b * 3

        @staticmethod
        def backward(ctx: Any, ga: torch.Tensor, gb: torch.Tensor) -> Any:
            return ga * 2, gb * 3

    arguments = [torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)]
    verdict = gate.check(lambda a, b: Zeros.apply(a, b), lambda a, b: (a * 2, b * 3), arguments)
    assert verdict.accepted, verdict.reason


def test_complex_numbers() -> None:
    def turn(x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.fft.fft(x) * z, (z * z.conj()).real)

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, generator=generator, requires_grad=True)
    z = torch.randn(8, generator=generator, dtype=torch.complex64).requires_grad_()
    verdict = gate.check(turn, turn, [x, z])
    assert verdict.accepted, verdict.reason
    assert not gate.check(lambda x, z: (turn(x, z)[0].conj() * 1, turn(x, z)[1]), turn, [x, z]).accepted


def test_judges_by_eager_where_float64_cannot_run() -> None:
    def bits(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((x.view(torch.int32) & 0x7FFFFFFF).view(torch.float32) * 3,)

    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    verdict = gate.check(lambda x: (x.abs() * 3,), bits, [x])
    assert verdict.accepted, verdict.reason
    assert verdict.reference.startswith("eager (in float64")
    assert gate.check(lambda x: (x.abs() * 3.001,), bits, [x]).outcome == "rejected"


def test_lucky_eager_does_not_condemn_an_equal() -> None:
    """Eager's error is zero by accident. The bound then comes from the last bits of the inputs."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1 << 14, generator=generator)
    x = torch.cat([x, -x])[torch.randperm(1 << 15, generator=generator)]

    def exact(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.double().sum().float(),)

    verdict = gate.check(lambda x: (x.sum(),), exact, [x])
    assert verdict.accepted, verdict.reason


def test_eager_that_raises_is_not_a_reference() -> None:
    def broken(x: torch.Tensor) -> Any:
        raise ValueError("bad shape")

    verdict = gate.check(lambda x: (x,), broken, [torch.ones(2)])
    assert verdict.outcome == "not-run"
    assert "bad shape" in verdict.reason


def test_a_graph_that_raises_in_float64_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    class Bits(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (x.view(torch.int32).to(torch.float32),)

    graph = torch.fx.symbolic_trace(Bits())
    verdict = gate.check(graph.forward, graph, [torch.ones(4)])
    assert verdict.accepted and "float64 the graph raises" in verdict.reference, verdict.reason
    assert capfd.readouterr().err == ""
