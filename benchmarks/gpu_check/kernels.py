# SPDX-License-Identifier: Apache-2.0
"""agspeed's own GPU kernels, compared with the reference interpreter on the CPU and with the bandwidth of a copy.

A kernel is made as the native candidate makes it. A graph is traced on the CPU; its text then names the GPU as its
device, and it is compiled there.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from agspeed import native
from agspeed.errors import UnsupportedError
from agspeed.graph_spec.export import export
from benchmarks.gpu_check.parts import Findings

Function = Callable[..., Any]

_UNARY: tuple[Function, ...] = (torch.tanh, torch.sigmoid, torch.relu, torch.abs, torch.exp, torch.neg, torch.sin)
_BINARY: tuple[Function, ...] = (torch.add, torch.mul, torch.sub, torch.maximum, torch.minimum)
_MOST_OFF = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2**-6, torch.float16: 2**-9}
"""Limits for the error, relative to the larger of 1 and a value's magnitude. Reductions add in another order, and
16-bit results may be rounded otherwise."""


class Case(NamedTuple):
    name: str
    function: Function
    inputs: Sequence[Tensor]
    start: int = 0
    """How many elements the GPU's inputs begin after an aligned address."""


def cases() -> list[Case]:
    def rows(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape).to(dtype)

    def gelu_chain(x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.gelu(x * y + 1) * torch.sigmoid(x)

    def softmax(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)

    def norm_backward(x: Tensor, weight: Tensor, bias: Tensor, tangent: Tensor) -> tuple[Tensor, ...]:
        inputs = [value.detach().requires_grad_() for value in (x, weight, bias)]
        return torch.autograd.grad(norm(*inputs), inputs, tangent)

    found = [
        Case("sums over rows", lambda x, y: (x.exp() * y).sum(0), [rows(700, 96), rows(700, 96)]),
        Case("strided", lambda x, y: x.t() + y, [rows(48, 33), rows(33, 48)]),
        Case("integers", lambda x, y: torch.where(x > y, x * 3, y), [torch.arange(99), torch.arange(99).flip(0)]),
        Case("nothing", gelu_chain, [rows(0, 8), rows(0, 8)]),
        Case("norm backward", norm_backward, [rows(64, 384), rows(384), rows(384), rows(64, 384)]),
    ]
    for columns in (3, 64, 1000, 5000):
        found.append(Case(f"softmax of {columns}", softmax, [rows(17, columns)]))
        found.append(Case(f"norm of {columns}", norm, [rows(17, columns), rows(columns), rows(columns)]))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):  # not float64: there is no formula of erf for it
        found.append(Case(f"chain in {dtype}", gelu_chain, [rows(37, 131, dtype=dtype), rows(131, dtype=dtype)]))
    found.append(Case("chain in f64", lambda x, y: torch.relu(x * y + 1) - x, [rows(37, 131, dtype=torch.float64)] * 2))
    for start in (1, 2, 3):
        found.append(Case(f"{start} elements off", gelu_chain, [rows(16, 64), rows(16, 64)], start))
    return found


def random_case(seed: int) -> Case:
    """Returns a chain of operators over rows, with reductions among them."""
    chosen = random.Random(seed)
    columns = chosen.choice((5, 32, 100, 769))
    steps = [(chosen.random(), chosen.choice(_UNARY), chosen.choice(_BINARY), chosen.random()) for _ in range(8)]

    def chain(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        values = [x, y]
        for kind, unary, binary, place in steps:
            value = values[int(place * len(values))]
            if kind < 0.2:
                values.append(torch.tanh(value - value.mean(-1, keepdim=True)))
            elif kind < 0.6:
                values.append(binary(torch.tanh(value), values[-1]))
            else:
                values.append(unary(torch.clamp(value, -4, 4)))
        return values[-1], torch.tanh(values[-2])

    inputs = [torch.randn(chosen.choice((1, 9, 64)), columns), torch.randn(columns)]
    return Case(f"random {seed}", chain, inputs, chosen.choice((0, 0, 1)))


def conformance(seconds: float, most_random: int = 300) -> Findings:
    """Checks all fixed cases, then random ones until the time is over."""
    if (reason := _why_not()) is not None:
        return {"holds": True, "left_out": reason}
    until = time.monotonic() + 0.9 * seconds
    torch.manual_seed(1)
    failed, number = {}, 0
    fixed = cases()
    while number < len(fixed) + most_random and time.monotonic() < until:
        case = fixed[number] if number < len(fixed) else random_case(number - len(fixed))
        number += 1
        if (why := _difference(case)) is not None:
            failed[case.name] = why
    return {
        "holds": not failed,
        "why": f"differ: {failed}",
        "figures": {"cases": number, "random": max(0, number - len(fixed))},
        "left_out": None if number >= len(fixed) else f"no time for {len(fixed) - number} cases",
    }


def bandwidth(seconds: float, bytes_moved: int = 256 << 20) -> Findings:
    """Measures bytes per second of a copy, and of kernels that read and write as many. Reports them without a
    verdict."""
    count = bytes_moved // 8
    source, target = (torch.empty(count, dtype=torch.float32, device="cuda") for _ in range(2))
    copied = 8 * count / _seconds(lambda: target.copy_(source))
    figures: dict[str, Any] = {"copy_bytes_per_second": copied}
    if (reason := _why_not()) is not None:
        return {"holds": True, "left_out": reason, "figures": figures}
    rows = max(1, count // 1024)
    x = torch.randn(rows, 1024).to("cuda")
    for name, function in {
        "element-wise": lambda x: torch.tanh(x) * 0.5 + 1,
        "softmax": lambda x: torch.softmax(x, -1),
        "row sums": lambda x: (x * x).sum(-1),
    }.items():
        kernel = _compiled(function, [torch.empty(rows, 1024)], "cuda:0")
        moved = 4 * rows * 1024 * (1 if name == "row sums" else 2)
        speed = moved / _seconds(lambda kernel=kernel: kernel.run("forward", [x]))  # type: ignore[misc]
        figures[name] = {"bytes_per_second": speed, "of_copy": speed / copied}
    return {"holds": True, "figures": figures}


def _why_not() -> str | None:
    """Returns the reason why there are no kernels to check, or None."""
    try:
        _compiled(torch.exp, [torch.zeros(4)], "cuda:0")
    except UnsupportedError as error:  # a limit of this build, driver or GPU; any other exception is a bug
        return f"the native candidate makes no GPU kernels here: {error}"
    return None


def _compiled(function: Function, inputs: Sequence[Tensor], device: str, target: str = "") -> Any:
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    text = re.sub(r'("device"\s*:\s*)"cpu"', rf'\1"{device}"', export(graph).to_json())
    module = native.load()
    assert module is not None
    return module.compile({"forward": text}, {"device": device, "target": target})


def _difference(case: Case) -> str | None:
    """Returns how the results of a case's kernels are wrong, or None."""
    try:
        expected = _compiled(case.function, case.inputs, "cpu", "reference").run("forward", list(case.inputs))
        kernel = _compiled(case.function, case.inputs, "cuda:0")
        found = kernel.run("forward", [_on_gpu(value, case.start) for value in case.inputs])
        again = kernel.run("forward", [_on_gpu(value, case.start) for value in case.inputs])
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    for i, (good, bad, second) in enumerate(zip(expected, found, again, strict=True)):
        if not torch.equal(bad.cpu(), second.cpu()):
            return f"output {i} differs from run to run"
        off = (bad.cpu().double() - good.double()).abs() / good.double().abs().clamp(min=1)
        if off.numel() > 0 and not bool(off.max() <= _MOST_OFF.get(good.dtype, 0.0)):
            return f"output {i} is off by {float(off.max()):.3g}"
    return None


def _on_gpu(value: Tensor, start: int) -> Tensor:
    """Copies the values to the GPU, `start` elements after an aligned address."""
    memory = torch.empty(value.numel() + start, dtype=value.dtype, device="cuda")
    view = memory[start:].view(value.shape)
    view.copy_(value)
    return view


def _seconds(run: Callable[[], Any]) -> float:
    """The median seconds of some runs, timed by events."""
    begin, end = torch.Event("cuda", enable_timing=True), torch.Event("cuda", enable_timing=True)
    times = []
    for _ in range(20):
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(1e-3 * begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]
