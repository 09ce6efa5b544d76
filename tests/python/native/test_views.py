# SPDX-License-Identifier: Apache-2.0
"""Views, concatenations and their backwards in the native backend: values and memory as in eager, and no calls.

The numbers are small integers, so sums are exact in any order and results must be equal to the last bit.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from agspeed.backends import CompileOptions, candidate
from agspeed.errors import UnsupportedError

Function = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("one_thread")

SEED = int(os.environ.get("AG_TEST_SEED", "1"))
NUM_GRAPHS = 400 if os.environ.get("AG_TEST_THOROUGH") else 10

MOVES = (
    "as_strided",
    "cat",
    "constant_pad_nd",
    "expand",
    "permute",
    "select",
    "select_backward",
    "slice",
    "slice_backward",
    "split",
    "split_with_sizes",
    "squeeze",
    "stack",
    "t",
    "transpose",
    "unbind",
    "unsqueeze",
    "view",
)
"""Operators that only move elements."""

ENTRIES = ("forward", "backward")


class Native:
    """A backend of `torch.compile` that keeps its runners."""

    def __init__(self) -> None:
        if reason := candidate("native").unavailable():
            pytest.skip(f"the native backend cannot run: {reason}")
        self.runners: list[Any] = []
        self.refusals: list[str] = []

    def __call__(self, gm: Any, _inputs: list[Any]) -> Any:
        inputs = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        try:
            runner = candidate("native").compile(gm, inputs, CompileOptions(num_threads=1))
        except UnsupportedError as refusal:
            self.refusals.append(str(refusal))
            return gm
        self.runners.append(runner)
        return runner

    def moves(self, entries: Sequence[str] = ENTRIES) -> list[tuple[str, str, str]]:
        """The operators that only move elements and stayed calls, in these directions, with result and reason."""
        found = [
            each for runner in self.runners for entry in entries for each in runner._executable.instructions(entry)
        ]
        calls = [each for each in found if each["kind"] == "call" and each["name"].split(".")[1] in MOVES]
        return [(each["name"], each["results"], each["reason"]) for each in calls]


def numbers(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(SEED + seed)
    return torch.randint(-3, 4, sizes, generator=generator).to(dtype)


def _outputs_and_gradients(run: Function, inputs: Sequence[Tensor]) -> list[Tensor]:
    copies = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    outputs = run(*copies)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    for index, output in enumerate(outputs):
        if output.requires_grad:
            output.backward(numbers(*output.shape, dtype=output.dtype, seed=index), retain_graph=True)
    return [*(output.detach() for output in outputs), *(x.grad for x in copies if x.grad is not None)]


def check(fn: Function, *shapes: Sequence[Tensor], dynamic: bool = False, about: str = "") -> Native:
    """Compares `fn` with eager for each list of inputs, bit by bit."""
    native = Native()
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend=native, dynamic=dynamic, fullgraph=True)
    for inputs in shapes:
        got = _outputs_and_gradients(compiled, inputs)
        wanted = _outputs_and_gradients(fn, inputs)
        assert len(got) == len(wanted)
        for index, (a, b) in enumerate(zip(got, wanted, strict=True)):
            where = f"{about} tensor {index} for {[tuple(x.shape) for x in inputs]}"
            assert a.dtype == b.dtype and a.shape == b.shape, where
            assert torch.equal(a, b), f"{where}:\n{a}\n{b}"
    if dynamic and native.refusals:
        assert all("is negative" in each for each in native.refusals), native.refusals
        with torch._dynamo.config.patch(specialize_int=True):  # numbers are constants now, and sizes still symbols
            return check(fn, *shapes, dynamic=True, about=about)
    assert native.runners and not native.refusals, native.refusals
    return native


def assert_no_moves(native: Native) -> None:
    assert not native.moves()
    assert all(runner.native_operators for runner in native.runners)


def test_slices_of_a_linear_layer_are_read_in_place() -> None:
    def gates(x: Tensor, h: Tensor, w: Tensor) -> Tensor:
        i, f, g, o = (x @ w).chunk(4, 1)
        c = f.relu() * h + i.relu() * g.relu()
        return o.relu() * c.relu()

    assert_no_moves(check(gates, [numbers(3, 5), numbers(3, 6), numbers(5, 24)]))


def test_steps_of_a_sequence_are_read_and_their_gradients_written_in_place() -> None:
    def unrolled(x: Tensor, w: Tensor) -> Tensor:
        h = x[:, 0]
        states = []
        for t in range(4):
            h = (x[:, t] + h @ w).clamp(-3, 3)
            states.append(h)
        return torch.stack(states, 1)

    assert_no_moves(check(unrolled, [numbers(3, 4, 5), numbers(5, 5)]))


def test_rotary_positions() -> None:
    def rotate(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
        a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return x * c + torch.cat([-b, a], -1) * s

    assert_no_moves(check(rotate, [numbers(2, 3, 4, 8), numbers(4, 8), numbers(4, 8)]))


def test_interleaved_positions() -> None:
    def rotate(x: Tensor, c: Tensor) -> Tensor:
        a, b = x[..., ::2] * c, x[..., 1::2] * c
        return torch.stack([a - b, a + b], -1).flatten(-2)

    assert_no_moves(check(rotate, [numbers(2, 3, 8), numbers(3, 4)]))


def test_zeros_of_gradients_have_eagers_sign() -> None:
    def halves(x: Tensor) -> tuple[Tensor, ...]:
        return x[:, :2] * -0.0, x[:, 3:] * 1.0

    native = Native()
    torch._dynamo.reset()
    x = torch.ones(2, 6)
    got, wanted = (_outputs_and_gradients(run, [x]) for run in (torch.compile(halves, backend=native), halves))
    assert torch.equal(torch.signbit(got[-1]), torch.signbit(wanted[-1]))
    assert_no_moves(native)


def test_slices_that_overlap_or_leave_gaps() -> None:
    def overlap(x: Tensor) -> tuple[Tensor, ...]:
        return x[:, 1:] - x[:, :-1], x[2:5] * 2, x[:, 3] * 3

    assert_no_moves(check(overlap, [numbers(6, 7)]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    def mix(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x[:, :2] * 2, y, x[:, 2:] + x[:, :1]], 1)

    assert_no_moves(check(mix, [numbers(3, 6, dtype=dtype), numbers(3, 2)]))


def test_sizes_that_are_known_only_at_run_time() -> None:
    def shifted(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        both = torch.cat([x[:, 1:], y], 0)
        return both * 2, x[:, -1] + x[:, 0], y[: y.shape[0] // 2] * 3

    lists = [[numbers(n, m), numbers(n + 3, m - 1)] for n, m in ((5, 7), (9, 4), (6, 6))]
    assert_no_moves(check(shifted, *lists, dynamic=True))


def test_empty_slices() -> None:
    def empty(x: Tensor) -> tuple[Tensor, ...]:
        return torch.cat([x[:, 3:], x[:, :0], x[:, :3]], 1) * 2, x[4:] + 1

    check(empty, [numbers(4, 6)])


@pytest.mark.parametrize(
    "pad",
    [[1, 2], [0, 0, 1, 0], [1, 1, 2, 2], [3, 0, 0, 1, 1, 1], [-1, 2], [-1, -2, 1, 1], [-1, 0, -2, -1], [0, 0]],
    ids=str,
)
def test_padding(pad: list[int]) -> None:
    def padded(x: Tensor) -> tuple[Tensor, ...]:
        return (
            functional.pad(x * 2, pad, value=-3.0).relu() + 1,
            functional.pad(x, pad),
            functional.pad(x, pad, value=7),
        )

    assert_no_moves(check(padded, [numbers(2, 3, 5, 7)]))
    assert_no_moves(check(padded, [numbers(2, 3, 5, 7, dtype=torch.bfloat16)]))


def test_padding_of_other_dtypes() -> None:
    def padded(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        integers, bits = functional.pad(x, [1, 1], value=-100), functional.pad(y, [0, 2], value=1)
        return integers + 1, bits | y[:, :1], z * bits

    x = numbers(3, 4, dtype=torch.int64)
    assert_no_moves(check(padded, [x, x > 0, numbers(3, 6)]))


def test_padding_with_infinity_and_nan() -> None:
    def padded(x: Tensor) -> tuple[Tensor, ...]:
        return functional.pad(x, [1, 1], value=math.inf) * 2, functional.pad(x, [1, 1], value=math.nan) * 2

    native = Native()
    torch._dynamo.reset()
    x = numbers(3, 4).requires_grad_()
    for a, b in zip(torch.compile(padded, backend=native)(x), padded(x), strict=True):
        assert torch.equal(a.nan_to_num(9, 8, 7), b.nan_to_num(9, 8, 7))
    assert not native.moves()


def test_padding_of_images_keeps_their_layout() -> None:
    def padded(x: Tensor) -> Tensor:
        return functional.pad(x, [1, 2, 0, 1])

    x = numbers(2, 8, 3, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    native = Native()
    torch._dynamo.reset()
    got, wanted = torch.compile(padded, backend=native)(x), padded(x)
    assert torch.equal(got, wanted) and got.stride() == wanted.stride()
    assert not native.moves()


def test_padding_of_sizes_that_are_known_only_at_run_time() -> None:
    def padded(x: Tensor) -> Tensor:
        return functional.pad(x, [1, 2, -1, 3]) * 2

    assert_no_moves(check(padded, *([numbers(n, m)] for n, m in ((5, 7), (9, 4), (6, 6))), dynamic=True))


def test_empty_paddings_stay_calls() -> None:
    def padded(x: Tensor) -> tuple[Tensor, ...]:
        return functional.pad(x, [-2, -2]) + 1, functional.pad(x[:0], [1, 1])

    assert check(padded, [numbers(3, 4)]).moves()


STRIDED = {
    "slice": ([2, 3], [12, 2], 1),
    "transpose": ([6, 4], [1, 6], 0),
    "selection": ([4], [6], 3),
    "expansion": ([3, 4], [0, 6], 2),
    "reshape": ([8, 3], [3, 1], 0),
    "inner dimension of size 1": ([4, 1, 6], [6, 77, 1], 0),
}
"""Sizes, strides and offset in a tensor of [4, 6]."""


@pytest.mark.parametrize("name", STRIDED)
def test_strides_that_slices_permutations_and_reshapes_give_are_read_in_place(name: str) -> None:
    def strided(x: Tensor) -> Tensor:
        return (x * 2).as_strided(*STRIDED[name]) + 1

    native = Native()
    torch._dynamo.reset()
    x = numbers(4, 6).requires_grad_()
    assert torch.equal(torch.compile(strided, backend=native)(x), strided(x))
    assert native.runners and not native.moves(["forward"])


@pytest.mark.parametrize("place", [([4], [7], 0), ([5, 2], [1, 1], 0), ([2, 13], [11, 1], 0), ([3, 4], [8, 1], 0)])
def test_other_strides_stay_calls(place: tuple[list[int], list[int], int]) -> None:
    def strided(x: Tensor) -> Tensor:
        return (x * 2).as_strided(*place) + 1

    native = Native()
    torch._dynamo.reset()
    x = numbers(4, 6).requires_grad_()
    assert torch.equal(torch.compile(strided, backend=native)(x), strided(x))
    (move,) = native.moves(["forward"])
    assert move[0] == "aten.as_strided.default" and "slices, permutations" in move[2]


def test_an_offset_counts_from_the_beginning_of_an_inputs_memory() -> None:
    def strided(x: Tensor) -> tuple[Tensor, ...]:
        return x.as_strided([2, 3], [6, 1], 1) + 1, x.as_strided([3, 3], [6, 2]) + 1

    native = Native()
    torch._dynamo.reset()
    x = numbers(5, 6)[1:].detach().requires_grad_()
    compiled = torch.compile(strided, backend=native)
    for a, b in zip(compiled(x), strided(x), strict=True):
        assert torch.equal(a, b)
    assert [move[1] for move in native.moves(["forward"])] == ["f32[2,3]"]


def test_the_layout_of_results_is_eagers() -> None:
    def strided(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return torch.cat([x.mT, y.mT * 2], 2), x[:, ::2] + 1, torch.stack([x, y]).mT

    native = Native()
    torch._dynamo.reset()
    inputs = (numbers(2, 4, 6), numbers(2, 6, 6)[:, :4])
    got = torch.compile(strided, backend=native)(*inputs)
    for a, b in zip(got, strided(*inputs), strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()
    assert native.runners


def test_an_output_that_is_a_view_shares_memory_with_the_input() -> None:
    def views(x: Tensor) -> tuple[Tensor, ...]:
        return x[1:, ::2], x.select(1, 2), x.view(-1)[3:], x * 2

    native = Native()
    torch._dynamo.reset()
    x = numbers(4, 6)
    got = torch.compile(views, backend=native)(x)
    x.mul_(10)
    for a, b in zip(got[:3], views(x)[:3], strict=True):
        assert torch.equal(a, b) and a.storage_offset() == b.storage_offset() and a.stride() == b.stride()
    assert native.runners


def test_outputs_that_are_views_of_one_result_share_its_memory() -> None:
    def views(x: Tensor) -> tuple[Tensor, ...]:
        y = x.relu() * 2
        return y, y[1:], y.t()[2]

    native = Native()
    torch._dynamo.reset()
    x = numbers(4, 6)
    y, tail, row = torch.compile(views, backend=native)(x)
    y.add_(100)
    assert torch.equal(tail, y[1:]) and torch.equal(row, y.t()[2])
    assert native.runners


def test_writes_after_a_view_are_seen_as_in_eager() -> None:
    def write(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        before = x[:, 1:3] * 2
        part = x[1:]
        part.add_(y[1:])
        x[:, 0] = 7
        return before, part * 3, torch.cat([x[:2], y], 0)

    native = Native()
    torch._dynamo.reset()
    compiled = torch.compile(write, backend=native)
    first, second = (numbers(4, 6), numbers(4, 6, seed=1)), (numbers(4, 6), numbers(4, 6, seed=1))
    for a, b in zip(compiled(*first), write(*second), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
    assert native.runners


def test_results_of_a_call_survive_the_next_call() -> None:
    def views(x: Tensor) -> tuple[Tensor, ...]:
        y = (x + 1).relu()
        return y.mT[1:], torch.cat([y, x]), (y @ y.mT)[0]

    native = Native()
    torch._dynamo.reset()
    compiled = torch.compile(views, backend=native)
    kept = [(x, compiled(x)) for x in (numbers(4, 6, seed=seed) for seed in range(3))]
    for x, got in kept:
        assert all(torch.equal(a, b) for a, b in zip(got, views(x), strict=True))
    assert native.runners


def test_a_negative_number_is_no_size() -> None:
    """Dynamo makes symbols of numbers that the function reads from its surroundings, too."""

    def around(index: int) -> Function:
        return lambda x: x.unbind(0)[1].select(1, index) * 2

    torch._dynamo.reset()
    native, x = Native(), numbers(4, 3, 5)
    compiled = torch.compile(around(-2), backend=native, dynamic=True, fullgraph=True)
    assert torch.equal(compiled(x), around(-2)(x))
    [refusal] = native.refusals
    assert "is negative (-2)" in refusal


@pytest.mark.parametrize(
    "function",
    [
        lambda x, k: functional.pad(x, (k, -k)) * 2,
        lambda x, k: x.select(1, k) * 2,
        lambda x, k: x[:, k:] * 2,
        lambda x, k: x[:, : k - 4] * k,
        lambda x, k: x.roll(k, 1) * max(k, 0),
    ],
    ids=["pad", "select", "from", "to", "roll"],
)
def test_a_number_may_change_its_sign(function: Callable[[Tensor, int], Tensor]) -> None:
    torch._dynamo.reset()
    native, x = Native(), numbers(5, 12)
    compiled = torch.compile(function, backend=native)
    for number in (1, 2, 3, -1, -2, 0, 4):
        assert torch.equal(compiled(x, number), function(x, number)), number
    assert native.runners


# --- random graphs ---


Step = tuple[Callable[..., Any], list[int]]
"""A function that returns a tensor or several, and the positions of its arguments among all values so far."""


class _Graph:
    """A random function of tensors: steps that move elements, with some arithmetic."""

    def __init__(self, seed: int, inputs: Sequence[Tensor]) -> None:
        self.random = random.Random(seed)
        self.values = list(inputs)
        self.steps: list[Step] = []
        kinds = [self._slice, self._slice, self._select, self._split, self._cat, self._cat, self._stack]
        kinds += [self._reshape, self._pad, self._arithmetic, self._arithmetic, self._product]
        while len(self.steps) < 8:
            at = self.random.choice([i for i, value in enumerate(self.values) if value.dim()])
            step = self.random.choice(kinds)(at)
            if step is not None:
                self.steps.append(step)
                self.values += _apply(step, self.values)
        self.outputs = list(range(len(inputs), len(self.values)))[-5:]

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        values = list(inputs)
        for step in self.steps:
            values += _apply(step, values)
        return tuple(values[i] * 2 for i in self.outputs)

    def _dim(self, at: int) -> int:
        return self.random.randrange(self.values[at].dim())

    def _slice(self, at: int) -> Step | None:
        dim = self._dim(at)
        n = self.values[at].shape[dim]
        index = slice(
            self.random.randint(-n, n), self.random.choice([n, n - 1, -1, 3]), self.random.choice([1, 1, 2, 3])
        )
        if not len(range(*index.indices(n))):
            return None
        place = (slice(None),) * dim + (index,)
        return lambda x: x[place], [at]

    def _select(self, at: int) -> Step:
        dim = self._dim(at)
        index = self.random.randrange(-self.values[at].shape[dim], self.values[at].shape[dim])
        return lambda x: x.select(dim, index), [at]

    def _split(self, at: int) -> Step:
        dim = self._dim(at)
        n = self.values[at].shape[dim]
        kind = self.random.randrange(3)
        if kind == 0:
            return lambda x: x.chunk(2, dim), [at]
        return (lambda x: x.split([1, n - 2, 1], dim), [at]) if kind == 1 and n > 2 else (lambda x: x.unbind(dim), [at])

    def _similar(self, at: int, count: int) -> list[int]:
        same = [i for i, value in enumerate(self.values) if value.shape == self.values[at].shape]
        return [self.random.choice(same) for _ in range(count)]

    def _cat(self, at: int) -> Step:
        dim = self._dim(at)
        return lambda *parts: torch.cat(parts, dim), [at, *self._similar(at, self.random.randint(1, 3))]

    def _stack(self, at: int) -> Step | None:
        dim = self.random.randint(0, self.values[at].dim())
        others = self._similar(at, self.random.randint(0, 2))
        return (lambda *parts: torch.stack(parts, dim), [at, *others]) if self.values[at].dim() < 4 else None

    def _reshape(self, at: int) -> Step | None:
        kind, rank = self.random.randrange(4), self.values[at].dim()
        if kind == 0:
            return lambda x: x.transpose(0, -1), [at]
        if kind == 1:
            return lambda x: x.reshape(-1), [at]
        dim = self.random.randint(0, rank)
        if rank > 3:
            return None
        return (lambda x: x.unsqueeze(dim), [at]) if kind == 2 else (lambda x: x.unsqueeze(0).expand(2, *x.shape), [at])

    def _pad(self, at: int) -> Step:
        sizes = list(self.values[at].shape)[::-1]
        count = self.random.randint(1, len(sizes))
        pad = [
            self.random.choice([-1, 0, 1, 2]) if n > 2 else self.random.choice([0, 1])
            for n in sizes[:count]
            for _ in "lh"
        ]
        if self.random.random() < 0.5:
            return lambda x: functional.pad(x, pad), [at]
        return lambda x: functional.pad(x, pad, value=2.0), [at]

    def _arithmetic(self, at: int) -> Step:
        functions = [torch.add, lambda x, y: x - y * 2, lambda x, y: x.clamp(-9, 9), lambda x, y: y.relu()]
        return self.random.choice(functions), [at, *self._similar(at, 1)]

    def _product(self, at: int) -> Step | None:
        if self.values[at].dim() < 2:
            return None
        return lambda x: (x.clamp(-3, 3) @ x.clamp(-3, 3).mT).clamp(-9, 9), [at]


def _apply(step: Step, values: list[Tensor]) -> list[Tensor]:
    made = step[0](*(values[i] for i in step[1]))
    return [made] if isinstance(made, Tensor) else list(made)


@pytest.mark.parametrize("index", range(NUM_GRAPHS))
def test_random_graphs(index: int) -> None:
    seed = SEED * 100_000 + index
    generator = random.Random(seed)
    dtype = generator.choice([torch.float32, torch.float32, torch.float64])
    shapes = [[generator.randint(2, 6) for _ in range(generator.randint(1, 3))] for _ in range(2)]
    inputs = [numbers(*shape, dtype=dtype, seed=seed + i) for i, shape in enumerate(shapes)]
    graph = _Graph(seed, inputs)
    dynamic = generator.random() < 0.3
    native = check(lambda *x: graph(*x), inputs, dynamic=dynamic, about=f"seed {seed}")
    if not dynamic:  # otherwise Dynamo may take the step of a slice for a symbol
        kept = ("slice.", "select.", "split", "unbind")
        assert not [move for move in native.moves() if move[0].removeprefix("aten.").startswith(kept)], f"seed {seed}"
