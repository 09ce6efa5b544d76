# SPDX-License-Identifier: Apache-2.0
"""Every mutant that the rules make from correct graphs is rejected, unless it is equivalent to its original.

Run with ``-s`` to see the number of mutants and of equivalent ones for each graph. The gate gets two data sets. A
mutant may change only elements that a ``where`` leaves out; these show in one of the two. Seeds are printed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from agspeed.tuning.gate import check as gate
from tests.python.tuning.gate.graph_mutations import Mutant, equivalent, mutants

pytestmark = pytest.mark.usefixtures("one_thread")

Function = Callable[..., tuple[torch.Tensor, ...]]


def _pointwise(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a = torch.where(x > 0, x.tanh() * y, (y * 0.5).exp() - 1.5)
    b = torch.maximum(a.sigmoid(), x.sin() * 1.5) / (y.abs() + 2.0)
    return (a - b, functional.silu(b) + torch.log1p(y * y))


def _normalised(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred * centred).sum([-1], keepdim=True) / 7.0
    normal = centred * torch.rsqrt(variance + 1e-3)
    return (functional.gelu(normal * weight + bias),)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scores = (q @ k.transpose(-1, -2)) * 0.35
    return (scores.softmax(-1) @ v,)


def _loss(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    hidden = functional.relu(functional.linear(x, weight))
    log = hidden.log_softmax(-1)
    return (-(log[:, :-1].sum(-1)).mean(), log.amax([0]), torch.cat([hidden, x], 1).square().mean(0))


def _convolution(image: torch.Tensor, kernel: torch.Tensor) -> tuple[torch.Tensor, ...]:
    features = functional.conv2d(image, kernel, stride=1, padding=1)
    return (functional.avg_pool2d(features.clamp(-2.0, 2.0), 2), features.amin([2, 3]))


GRAPHS: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "pointwise": (_pointwise, ((6, 8), (6, 8))),
    "normalised": (_normalised, ((6, 8), (8,), (8,))),
    "attention": (_attention, ((2, 6, 4), (2, 6, 4), (2, 6, 4))),
    "loss": (_loss, ((6, 8), (8, 8))),
    "convolution": (_convolution, ((2, 3, 6, 6), (3, 3, 3, 3))),
}


def _data(shapes: Sequence[tuple[int, ...]], seed: int, kind: str) -> list[torch.Tensor]:
    """Returns real numbers, or integers in a wide range. The gate's own data are eighths, so that ties occur."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "integers":
        return [torch.randint(-9, 10, shape, generator=generator).float() for shape in shapes]
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    return drawn if kind == "reals" else [(x * 16).round() / 8 for x in drawn]


def _accepted(mutant: fx.GraphModule, original: fx.GraphModule, *data: Sequence[torch.Tensor]) -> bool:
    inputs = ([value.clone().requires_grad_() for value in values] for values in data)
    return all(gate.check(mutant, original, each).accepted for each in inputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_rejects_every_generated_mutant(name: str) -> None:
    function, shapes = GRAPHS[name]
    seed = 17
    values, more = _data(shapes, seed, "eighths"), _data(shapes, seed + 5, "eighths")
    original = make_fx(function)(*values)
    others = [_data(shapes, seed + i, kind) for i, kind in enumerate(("integers", "reals", "integers", "reals"), 1)]
    assert _accepted(original, original, values, more)
    made, same = 0, 0
    survivors: list[str] = []
    for mutant in mutants(original):
        made += 1
        if not _accepted(mutant.graph, original, values, more):
            continue
        if equivalent(original, mutant.graph, [values, more, *others]):
            same += 1
        else:
            survivors.append(mutant.what)
    print(f"{name}, seed {seed}: {made} mutants, {same} equivalent, {len(survivors)} accepted though different")
    assert made > 50
    assert not survivors, f"seed {seed}, accepted though different:\n" + "\n".join(survivors)


def test_equivalence_is_decided_by_numbers() -> None:
    shapes = ((4, 4),)
    data = [_data(shapes, 3, "integers"), _data(shapes, 4, "reals")]
    plain = make_fx(lambda x: (x * 2.0 + 1.0,))(*data[0])
    same = make_fx(lambda x: (x + x + 1.0,))(*data[0])
    assert equivalent(plain, same, data)
    assert not any(equivalent(plain, mutant.graph, data) for mutant in mutants(plain) if _visible(mutant))


def _visible(mutant: Mutant) -> bool:
    return "bfloat16" not in mutant.what  # small integers are unchanged by the rounding
