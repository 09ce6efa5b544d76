# SPDX-License-Identifier: Apache-2.0
"""A Region with compiled code behaves as torch promises for any differentiable function."""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import agspeed
from agspeed.errors import UnsupportedError, UserError
from tests.python.native.regions import make_region, native_region

pytestmark = pytest.mark.smoke


def mlp(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.tanh(F.linear(torch.sigmoid(F.linear(x, w, b)), v)),)


def mlp_inputs(rows: int = 6, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows, 5), (7, 5), (7,), (3, 7)]
    return [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in shapes]


@pytest.fixture(scope="module", params=["program", "python"])
def region(request: pytest.FixtureRequest) -> Any:
    """Runs mlp on inputs with the sizes of mlp_inputs(). Python code does not check sizes."""
    return make_region(mlp, mlp_inputs(), code=request.param)


@pytest.fixture(scope="module")
def program_region() -> Any:
    return make_region(mlp, mlp_inputs())


def native_calls(region: Any) -> int:
    stats = region.stats()
    return int(stats["calls"] - stats["fallbacks"])


def assert_native(region: Any, before: int, count: int = 1) -> None:
    assert native_calls(region) == before + count, region.stats()["last_fallback"]


def copies(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]


def test_outputs_and_gradients_equal_eager(region: Any) -> None:
    ours, theirs = mlp_inputs(), mlp_inputs()
    before = native_calls(region)
    (out,) = region(*ours)
    (expected,) = mlp(*theirs)
    torch.testing.assert_close(out, expected)
    assert out.requires_grad and out.grad_fn.name() == "AgspeedRegionBackward"
    out.square().sum().backward()
    expected.square().sum().backward()
    for mine, eager in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, eager.grad)
    assert_native(region, before)


def test_gradcheck_and_double_backward(region: Any) -> None:
    before = native_calls(region)
    # With 2 rows, because other sizes fall back.
    assert torch.autograd.gradcheck(lambda *args: region(*args)[0], mlp_inputs(2))
    inputs = mlp_inputs()
    assert torch.autograd.gradcheck(lambda *args: region(*args)[0], inputs)
    assert native_calls(region) > before
    assert torch.autograd.gradgradcheck(lambda *args: region(*args)[0], inputs)


def test_gradient_penalty_equals_eager(region: Any) -> None:
    def penalty(fn: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        x = inputs[0] * 2  # not a leaf, so the replay must connect to its history
        (out,) = fn(x, *inputs[1:])
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        grad.square().sum().backward()
        return [value.grad for value in inputs if value.grad is not None]

    ours, theirs = penalty(region, mlp_inputs()), penalty(mlp, mlp_inputs())
    torch.testing.assert_close(ours, theirs)


def test_batched_gradients_are_replayed(region: Any) -> None:
    inputs = mlp_inputs()
    vectors = torch.randn(4, 6, 3, dtype=torch.float64)
    ours = torch.autograd.grad(region(*inputs)[0], inputs, vectors, is_grads_batched=True)
    theirs = torch.autograd.grad(mlp(*inputs)[0], inputs, vectors, is_grads_batched=True)
    torch.testing.assert_close(ours, theirs)


def test_without_replay_double_backward_says_what_to_do() -> None:
    region = make_region(mlp, mlp_inputs(), replay=None)
    inputs = mlp_inputs()
    with pytest.raises(RuntimeError, match=r"agspeed\.paused"):
        torch.autograd.grad(region(*inputs)[0].sum(), inputs, create_graph=True)


def test_retain_graph_and_freed_graph(region: Any) -> None:
    inputs = mlp_inputs()
    loss = region(*inputs)[0].sum()
    first = torch.autograd.grad(loss, inputs, retain_graph=True)
    second = torch.autograd.grad(loss, inputs)
    torch.testing.assert_close(first, second)
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        torch.autograd.grad(loss, inputs)


def test_two_forwards_before_one_backward(region: Any) -> None:
    a, b = mlp_inputs(seed=1), mlp_inputs(seed=2)
    (region(*a)[0] * region(*b)[0]).sum().backward()
    c, d = copies(a), copies(b)
    (mlp(*c)[0] * mlp(*d)[0]).sum().backward()
    torch.testing.assert_close([x.grad for x in a + b], [x.grad for x in c + d])


def test_no_grad_and_inference_mode(region: Any) -> None:
    inputs = mlp_inputs()
    before = native_calls(region)
    with torch.no_grad():
        (out,) = region(*inputs)
    assert out.grad_fn is None and not out.requires_grad
    with torch.inference_mode():
        (out,) = region(*inputs)
    assert out.is_inference()
    assert region(*inputs)[0].requires_grad
    assert_native(region, before, 3)


def test_no_node_when_nothing_requires_grad(region: Any) -> None:
    before = native_calls(region)
    (out,) = region(*[x.detach() for x in mlp_inputs()])
    assert out.grad_fn is None
    assert_native(region, before)


def test_partly_frozen_inputs_take_the_fallback(region: Any) -> None:
    inputs = mlp_inputs()
    inputs[1].requires_grad_(False)
    (out,) = region(*inputs)
    assert "does not require grad" in region.stats()["last_fallback"]
    out.sum().backward()
    assert inputs[1].grad is None and inputs[0].grad is not None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x: x.detach().float().requires_grad_(), "input 0 is f32"),
        (lambda x: torch.cat([x, x]).detach().requires_grad_(), r"input 0 is f64\[12, 5\]"),
        (lambda x: x.detach().t().contiguous().t().requires_grad_(), "strides"),
    ],
    ids=["dtype", "size", "strides"],
)
def test_inputs_that_do_not_fit_take_the_fallback(program_region: Any, change: Any, reason: str) -> None:
    inputs = mlp_inputs()
    inputs[0] = change(inputs[0])
    calls = program_region.stats()["fallbacks"]
    if inputs[0].dtype == torch.float32:
        with pytest.raises(RuntimeError, match="dtype"):  # the user's own error, raised by the eager code
            program_region(*inputs)
    else:
        torch.testing.assert_close(program_region(*inputs), mlp(*inputs))
    assert program_region.stats()["fallbacks"] == calls + 1
    assert re.search(reason, program_region.stats()["last_fallback"])


def test_subclasses_and_modes_take_the_fallback(region: Any) -> None:
    from torch._subclasses import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    inputs = mlp_inputs()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        (fake,) = region(*[mode.from_tensor(x) for x in inputs])
    assert type(fake).__name__ == "FakeTensor"
    with FlopCounterMode(display=False) as flops:
        region(*inputs)
    assert flops.get_total_flops() > 0
    batched = torch.vmap(lambda x: region(x, *inputs[1:])[0])(torch.stack([inputs[0], inputs[0]]))
    torch.testing.assert_close(batched[1], mlp(*inputs)[0])
    assert "functorch" in region.stats()["last_fallback"]


def test_backward_under_a_dispatch_mode(region: Any) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    inputs = mlp_inputs()
    loss = region(*inputs)[0].sum()
    with FlopCounterMode(display=False) as flops:
        gradients = torch.autograd.grad(loss, inputs)
    torch.testing.assert_close(gradients, torch.autograd.grad(mlp(*inputs)[0].sum(), inputs))
    assert flops.get_total_flops() > 0


def test_forward_mode_derivatives_take_the_fallback(region: Any) -> None:
    inputs = [x.detach() for x in mlp_inputs()]
    direction = torch.randn_like(inputs[0])
    _, ours = torch.func.jvp(lambda x: region(x, *inputs[1:])[0], (inputs[0],), (direction,))
    _, theirs = torch.func.jvp(lambda x: mlp(x, *inputs[1:])[0], (inputs[0],), (direction,))
    torch.testing.assert_close(ours, theirs)


def test_autocast_does_not_leak_in(region: Any) -> None:
    inputs = mlp_inputs()
    before = native_calls(region)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (out,) = region(*inputs)
    assert out.dtype == torch.float64
    assert_native(region, before)


def test_modified_saved_input_raises_torchs_error(region: Any) -> None:
    inputs = mlp_inputs()
    (out,) = region(*inputs)
    with torch.no_grad():
        inputs[3].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_modified_saved_output_raises_torchs_error() -> None:
    region = make_region(lambda x: (torch.exp(x),), [torch.randn(4, requires_grad=True)])
    (out,) = region(torch.randn(4, requires_grad=True))
    out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_saved_tensor_hooks_run(region: Any) -> None:
    packed: list[torch.Tensor] = []
    unpacked: list[int] = []

    def pack(tensor: torch.Tensor) -> int:
        packed.append(tensor)
        return len(packed) - 1

    def unpack(index: int) -> torch.Tensor:
        unpacked.append(index)
        return packed[index]

    inputs = mlp_inputs()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        (out,) = region(*inputs)
    gradients = torch.autograd.grad(out.sum(), inputs)
    torch.testing.assert_close(gradients, torch.autograd.grad(mlp(*inputs)[0].sum(), inputs))
    assert packed and unpacked


def test_hooks_on_tensors_and_parameters_run(region: Any) -> None:
    inputs = mlp_inputs()
    seen: list[str] = []
    inputs[1].register_hook(lambda grad: seen.append("input"))
    (out,) = region(*inputs)
    out.register_hook(lambda grad: seen.append("output"))
    out.retain_grad()
    out.sum().backward()
    assert seen == ["output", "input"]
    torch.testing.assert_close(out.grad, torch.ones_like(out))


def test_undefined_and_expanded_tangents() -> None:
    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return torch.sin(x), torch.cos(x), (x > 0).to(torch.int64)

    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    region = make_region(two, [x])
    sine, _, sign = region(x)
    assert not sign.requires_grad
    (grad,) = torch.autograd.grad(sine.sum(), x)  # the other tangent is undefined, this one is expanded
    torch.testing.assert_close(grad, torch.cos(x))
    cosine = region(x)[1]
    (grad,) = torch.autograd.grad(cosine.t(), x, torch.ones(4, 3, dtype=torch.float64).mul(2))
    torch.testing.assert_close(grad, -2 * torch.sin(x))


def test_inputs_of_unused_outputs_alone_get_no_gradient() -> None:
    """As in eager, so that an optimizer skips them. A gradient of zeros would let a weight decay."""

    def heads(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.sin(x * v), torch.cos(x * w)

    x, v, w = (torch.randn(3, 4, requires_grad=True) for _ in range(3))
    region = make_region(heads, [x, v, w], gradient_sources=[[0, 1], [0], [1]])
    used, unused = region(x, v, w)
    gradients = torch.autograd.grad(used.sum(), [x, v, w], retain_graph=True, allow_unused=True)
    expected = torch.autograd.grad(heads(x, v, w)[0].sum(), [x, v])
    torch.testing.assert_close(gradients[:2], expected)
    assert gradients[2] is None
    assert torch.autograd.grad(unused.sum(), v, allow_unused=True) == (None,)


def test_dynamic_sizes() -> None:
    inputs = mlp_inputs()
    region = make_region(mlp, inputs, dynamic=True)
    for rows in (6, 2, 11):
        ours, theirs = mlp_inputs(rows), mlp_inputs(rows)
        (out,) = region(*ours)
        out.sum().backward()
        mlp(*theirs)[0].sum().backward()
        torch.testing.assert_close([x.grad for x in ours], [x.grad for x in theirs])
    assert region.stats()["fallbacks"] == 0, region.stats()["last_fallback"]


def test_mutations_are_applied_and_counted() -> None:
    def accumulate(x: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor]:
        total.add_(x.sum().detach())
        return (x * 2,)

    inputs = [torch.randn(4, requires_grad=True), torch.zeros(3)]
    region = make_region(accumulate, inputs, mutated=[1])
    version = inputs[1]._version
    (out,) = region(*inputs)
    torch.testing.assert_close(inputs[1], inputs[0].detach().sum().expand(3))
    assert inputs[1]._version > version
    out.sum().backward()
    torch.testing.assert_close(inputs[0].grad, torch.full((4,), 2.0))
    assert region.stats()["fallbacks"] == 0


def test_a_failing_operator_becomes_the_users_own_error() -> None:
    def pick(table: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor]:
        return (F.embedding(index, table) * 2,)

    table = torch.randn(4, 3, requires_grad=True)
    region = make_region(pick, [table, torch.tensor([1, 2])])
    with pytest.raises(IndexError, match="out of range"):
        region(table, torch.tensor([1, 9]))
    assert "aten.embedding" in region.stats()["last_fallback"]
    (out,) = region(table, torch.tensor([3, 3]))
    out.sum().backward()
    torch.testing.assert_close(table.grad, torch.tensor([0.0, 0.0, 0.0, 4.0]).unsqueeze(1).expand(4, 3))


def test_threads() -> None:
    region = make_region(mlp, mlp_inputs())
    failures: list[str] = []

    def work(seed: int) -> None:
        for step in range(20):
            ours = mlp_inputs(seed=seed * 100 + step)
            theirs = copies(ours)
            region(*ours)[0].sum().backward()
            mlp(*theirs)[0].sum().backward()
            for mine, eager in zip(ours, theirs, strict=True):
                if not torch.allclose(mine.grad, eager.grad):
                    failures.append(f"seed {seed}, step {step}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert region.stats()["fallbacks"] == 0


def test_nothing_leaks() -> None:
    class Fallback:
        def __call__(self, *args: torch.Tensor) -> Any:
            return mlp(*args)

    fallback = Fallback()
    inputs = mlp_inputs()
    region = make_region(mlp, inputs, fallback=fallback, replay=fallback)
    fallback.region = region  # type: ignore[attr-defined]  # a cycle that only the garbage collector can break
    (out,) = region(*inputs)
    watched = [weakref.ref(value) for value in (fallback, region, out, *inputs)]
    del fallback, region
    gc.collect()
    out.sum().backward()  # the graph keeps alive everything that it needs
    del out, inputs
    gc.collect()
    assert [ref() for ref in watched] == [None] * len(watched)


def test_an_input_modified_later_makes_no_cycle() -> None:
    leaf = torch.randn(4, requires_grad=True)
    region = make_region(lambda x: (torch.exp(x),), [leaf])  # saves its output only
    x = leaf * 1
    (out,) = region(x)
    x.add_(out.sum())  # x's history now contains the region, which holds x for the replay
    watched = [weakref.ref(out), weakref.ref(x)]
    del out, x
    gc.collect()
    assert [ref() for ref in watched] == [None, None]


def test_no_python_of_ours_runs_in_either_direction(region: Any) -> None:
    inputs = mlp_inputs()
    frames: list[str] = []

    def profile(frame: Any, event: str, _arg: Any) -> None:
        if event == "call":
            frames.append(frame.f_code.co_filename)

    sys.setprofile(profile)
    try:
        (out,) = region(*inputs)
        loss = out.sum()
        gradients = torch.autograd.grad(loss, inputs)
    finally:
        sys.setprofile(None)
    assert len(gradients) == 4
    ours = str(Path(agspeed.__file__).parent) + os.sep
    assert not [name for name in frames if name.startswith(ours)]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_outputs": 2}, UserError, "forward outputs"),
        ({"requires_grad": [True]}, UserError, "1 inputs, the entries have 4"),
        ({"requires_grad": "yes"}, UserError, "wrong type"),
        ({"fallback": 3}, UserError, "callable or None"),
        ({"mutated_inputs": [9]}, UserError, "number 9 of 4"),
        ({"tangents": [1]}, UserError, "tangents names number 1 of 1"),
        ({"tangent_layouts": [[0, 0]]}, UserError, "each dimension once"),
        ({"outputs_as_inputs": {0: 0}}, UserError, "has a tangent but comes from an input"),
    ],
)
def test_contradicting_signatures_are_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_region(mlp, mlp_inputs(), **changes)


def test_python_code_gets_tangents_in_the_layout_it_was_traced_with() -> None:
    seen: list[tuple[int, ...]] = []

    def backward(args: list[Any]) -> list[Any]:
        seen.append(args[-1].stride())
        return [args[-1] * 2]

    region = native_region(
        (lambda args: [args[0] * 2], (backward,)), requires_grad=[True], tangents=[0], tangent_layouts=[[1, 0]]
    )
    x = torch.randn(3, 4, requires_grad=True)
    for gradient in (torch.ones(3, 4), torch.ones(4, 3).t(), torch.ones(()).expand(3, 4)):
        (ours,) = torch.autograd.grad(region(x)[0], x, gradient)
        assert torch.equal(ours, gradient * 2)
    assert seen == [(1, 3)] * 3


def test_errors_of_python_code_reach_the_caller_and_rewind_the_random_stream() -> None:
    def forward(args: list[Any]) -> list[Any]:
        torch.rand(3)
        raise OverflowError("too much")

    region = native_region((forward, ()), requires_grad=[False], draws_random_numbers=True)
    state = torch.get_rng_state()
    with pytest.raises(OverflowError, match="too much"):
        region(torch.ones(2))
    assert torch.equal(torch.get_rng_state(), state)

    def backward(args: list[Any]) -> list[Any]:
        raise OverflowError("too much behind")

    region = native_region((lambda args: [args[0] * 2], (backward,)), requires_grad=[True], tangents=[0])
    with pytest.raises(OverflowError, match="too much behind"):
        region(torch.ones(2, requires_grad=True))[0].sum().backward()


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [(["text"], TypeError, "returned a str as result 0"), ([], RuntimeError, "returned 0 results instead of 1")],
)
def test_wrong_results_of_python_code_are_named(result: list[Any], error: type[Exception], message: str) -> None:
    region = native_region((lambda args: result, ()), requires_grad=[False])
    with pytest.raises(error, match=message):
        region(torch.ones(2))


def test_callables_are_collected() -> None:
    class Forward:
        def __call__(self, args: list[Any]) -> list[Any]:
            return [args[0] * 2]

    forward = Forward()
    region = native_region((forward, ()), requires_grad=[False])
    forward.region = region  # type: ignore[attr-defined]  # a cycle that only the garbage collector can break
    watched = weakref.ref(forward)
    del forward, region
    gc.collect()
    assert watched() is None


def test_random_numbers_are_replayed_for_double_backward() -> None:
    def noisy(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.sin(x) * torch.rand_like(x),)

    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    for code in ("program", "python"):
        region = make_region(noisy, [x], code=code, draws_random_numbers=True)
        results = []
        for fn in (region, noisy):
            torch.manual_seed(11)
            (out,) = fn(x)
            (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            second = torch.autograd.grad(gradient.sum(), x)[0]
            results.append([out, gradient, second, torch.rand(3)])
        torch.testing.assert_close(results[0], results[1])
        assert region.stats()["fallbacks"] == 0


def test_without_fallback_the_reason_is_raised() -> None:
    region = make_region(mlp, mlp_inputs(), fallback=None)
    with pytest.raises(UnsupportedError, match="has no fallback: input 0 is"):
        region(*mlp_inputs(9))
