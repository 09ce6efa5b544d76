# SPDX-License-Identifier: Apache-2.0
"""The candidate `native-channels-last`: what it computes, compared with eager, and which images it turns."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import agspeed
from agspeed.backends import CompileOptions, candidate
from agspeed.backends.ambient import AmbientModes
from agspeed.backends.joint import fake_inputs
from agspeed.errors import UnsupportedError
from agspeed.tuning.gate import check as gate

pytestmark = pytest.mark.usefixtures("needs_native")
_LAST = torch.channels_last


def _layouts(run: Callable[[], object], path: Path) -> list[tuple[str, bool]]:
    """Returns the convolutions and their backwards that a function calls, each with whether its images are
    channels-last. Requires: the images have several channels and columns."""
    with torch.profiler.profile(record_shapes=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    profile.export_chrome_trace(str(path))
    found = []
    for event in json.loads(path.read_text())["traceEvents"]:
        if event.get("name") in ("aten::convolution", "aten::convolution_backward"):
            num_images = 2 if event["name"].endswith("backward") else 1
            strides = event["args"]["Input Strides"][:num_images]
            found.append((event["name"], all(stride[1] == 1 and stride[3] > 1 for stride in strides)))
    return found


class Block(nn.Module):
    """A stem and a residual block of a ResNet, with its classifier."""

    def __init__(self, channels: int = 32, *, is_frozen: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, 2, 1, bias=False)
        self.first = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(3))
        self.head = nn.Linear(channels, 5)
        if is_frozen:
            self.norms.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norms[0](self.stem(x)), inplace=True), 3, 2, 1)
        y = F.relu(self.norms[1](self.first(x)))
        y = self.norms[2](self.second(y))
        y += x
        pooled = F.adaptive_avg_pool2d(F.relu(y), 1)
        return self.head(pooled.flatten(1))  # type: ignore[no-any-return]


def _compiled(model: Callable[..., Any], seen: list[Any], name: str = "native-channels-last", **options: Any) -> Any:
    def backend(gm: fx.GraphModule, _inputs: Sequence[Any]) -> Any:
        runner = candidate(name).compile(copy.deepcopy(gm), fake_inputs(gm), CompileOptions(num_threads=1))
        seen.append(runner)
        return runner

    torch._dynamo.reset()
    return torch.compile(model, backend=backend, **options)


def _verdict(model: Callable[..., Any], *inputs: Tensor) -> tuple[gate.Verdict, str]:
    """Returns the gate's verdict on the candidate's code for a model with one region, and that code."""
    found: list[tuple[gate.Verdict, str]] = []

    def backend(gm: fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        modes = AmbientModes.capture()
        chosen = candidate("native-channels-last")
        runner = chosen.compile(copy.deepcopy(gm), fake_inputs(gm), CompileOptions(num_threads=1))

        def checked(*args: Any) -> Any:
            own = [arg.detach().requires_grad_(arg.requires_grad) for arg in args]
            with modes.restored():
                found.append((gate.check(runner, gm, own), str(getattr(runner, "generated", ""))))
            return gm(*args)

        return checked

    torch._dynamo.reset()
    torch.compile(model, backend=backend, dynamic=False)(*inputs)
    (result,) = found
    return result


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(7)
    yield
    torch._dynamo.reset()


@pytest.mark.smoke
def test_a_residual_block_trains_as_eager_with_channels_last_convolutions(tmp_path: Path) -> None:
    eager = Block()
    twin, seen = copy.deepcopy(eager), list[Any]()
    compiled = _compiled(twin, seen)
    for step in range(3):
        images = torch.randn(4, 3, 48, 48)
        losses = []
        for model in (eager, compiled):
            model.zero_grad()
            losses.append(model(images).square().mean())
            losses[-1].backward()
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-6, msg=f"loss of step {step}")
        for (name, mine), other in zip(twin.named_parameters(), eager.parameters(), strict=True):
            assert mine.grad is not None and other.grad is not None
            assert mine.grad.stride() == other.grad.stride(), f"gradient of {name}"
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-5, msg=f"{name}, step {step}")
    torch.testing.assert_close(twin.state_dict(), eager.state_dict(), rtol=1e-4, atol=1e-5)
    (runner,) = seen
    assert not re.search(r"call aten\.\w*batch_norm", runner.generated), runner.generated
    calls = _layouts(lambda: compiled(images).sum().backward(), tmp_path / "trace.json")
    assert calls == [("aten::convolution", True)] * 3 + [("aten::convolution_backward", True)] * 3


def test_a_session_trains_with_it(tmp_path: Path) -> None:
    name = "native-channels-last"
    model = agspeed.optimize(Block(), mode="deterministic", backends=[name], cache_dir=tmp_path)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 48, 48)).square().mean().backward()
        optimizer.step()
    found = agspeed.report(model).to_dict()
    assert found["decision"]["chosen"] == name, found["decision"]["why"]
    assert [region["chosen"] for region in found["regions"]] == [name]


def test_convolutions_with_few_pixels_for_their_channels_keep_their_layout(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(6), nn.Conv2d(16, 64, 3), nn.Flatten())
    compiled = _compiled(model, [])
    images = torch.randn(2, 3, 32, 32)
    compiled(images)
    calls = _layouts(lambda: compiled(images).sum().backward(), tmp_path / "trace.json")
    forward, backward = ("aten::convolution", "aten::convolution_backward")
    assert calls == [(forward, True), (forward, False), (backward, False), (backward, True)]


def test_images_are_copied_only_at_the_borders() -> None:
    """The forward copies the stem's images to channels-last. It copies nothing else, not even the pooled features."""
    seen: list[Any] = []
    _compiled(Block(), seen)(torch.randn(4, 3, 48, 48)).sum().backward()
    forward = seen[0].generated.partition("\nbackward\n")[0]
    assert forward.count("clone") == 1, forward


class Odd(nn.Module):
    """Convolutions of every kind, resampling, joins and averages, with views and other operators between them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.wide = nn.Conv2d(channels, 16, (3, 5), 1, (1, 2))
        self.depthwise = nn.Conv2d(16, 16, 3, 1, 1, groups=16)
        self.point = nn.Conv2d(16, 24, 1)
        self.grouped = nn.Conv2d(24, 24, 3, 2, 1, groups=2)
        self.norm = nn.BatchNorm2d(24)
        self.up = nn.ConvTranspose2d(40, 8, 2, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = F.hardswish(self.wide(x))
        y = F.silu(self.norm(self.grouped(self.point(self.depthwise(wide)))))
        small = F.avg_pool2d(wide, 3, 2, 1)
        both = torch.cat([y, small], 1)
        shuffled = both.view(x.shape[0], 2, 20, *both.shape[2:]).transpose(1, 2).reshape(both.shape)
        up = F.interpolate(self.up(shuffled), scale_factor=2.0, mode="bilinear")
        return up * torch.sigmoid(x.mean((1, 2, 3), keepdim=True)), y


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        (lambda: Block(), (2, 3, 57, 45)),
        (lambda: Block(5), (3, 3, 16, 16)),
        (lambda: Block(16), (1, 3, 52, 52)),
        (lambda: Block(2), (20, 3, 4, 4)),
        (lambda: Block(24, is_frozen=True), (3, 3, 36, 36)),
        (lambda: Odd(3), (2, 3, 24, 20)),
        (lambda: Odd(1), (2, 1, 24, 20)),
        (lambda: Odd(4), (1, 4, 28, 28)),
    ],
    ids=[
        "odd sizes",
        "5 channels",
        "1 image",
        "1 pixel",
        "frozen norms",
        "odd operators",
        "gray",
        "1 image, odd operators",
    ],
)
def test_the_gate_accepts(model: Callable[[], nn.Module], sizes: tuple[int, ...]) -> None:
    verdict, _ = _verdict(model(), torch.randn(sizes).requires_grad_())
    assert verdict.accepted, verdict.reason
    assert verdict.gradients


def test_the_gate_accepts_bfloat16() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3), nn.Flatten())

    def step(x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    verdict, _ = _verdict(step, torch.randn(2, 3, 28, 28))
    assert verdict.accepted, verdict.reason


def test_images_in_any_layout_give_outputs_and_gradients_in_eagers_layout() -> None:
    convolution = nn.Conv2d(8, 16, 3)
    for images in (
        torch.randn(2, 8, 9, 9),
        torch.randn(9, 9, 8, 2).permute(3, 2, 0, 1),
        torch.randn(2, 16, 9, 9)[:, ::2],
    ):
        results = []
        for compute in (convolution, _compiled(convolution, [])):
            leaf = images.detach().requires_grad_()
            result = compute(leaf).relu()
            result.square().sum().backward()
            assert leaf.grad is not None
            results.append((result.stride(), leaf.grad.stride()))
        assert results[1] == results[0]


def test_random_numbers_go_to_the_elements_that_eager_gives_them_to() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(8, 8, 3), nn.Dropout2d(0.5))
    images = torch.randn(4, 3, 12, 12)
    torch.manual_seed(1)
    expected = model(images)
    compiled = _compiled(model, [])
    torch.manual_seed(1)
    torch.testing.assert_close(compiled(images), expected)


def test_batches_of_other_sizes_run_one_more_graph() -> None:
    model, seen = Block(16), list[Any]()
    compiled = _compiled(copy.deepcopy(model), seen)
    for batch in (4, 7, 3, 2):
        images = torch.randn(batch, 3, 24, 24)
        torch.testing.assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-5)
    assert len(seen) == 2


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(8, 16, 1), nn.ReLU(), nn.Conv2d(16, 8, 1)),
        nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.ReLU()),
        nn.Conv2d(8, 64, 3),
        nn.Sequential(nn.Flatten(), nn.Linear(8 * 36, 4)),
    ],
    ids=["1x1", "depthwise", "few pixels", "none"],
)
def test_graphs_whose_convolutions_cannot_gain_are_skipped(model: nn.Module) -> None:
    reasons: list[str | None] = []

    def backend(gm: fx.GraphModule, _inputs: Sequence[Any]) -> Any:
        reasons.append(candidate("native-channels-last").skip_reason(gm, CompileOptions(num_threads=1)))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(model, backend=backend)(torch.randn(2, 8, 6, 6))
    assert reasons == ["it has no convolutions for which the layout matters"]


def test_a_model_that_is_channels_last_already_gets_no_second_candidate() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).to(memory_format=_LAST)
    reasons: list[str] = []

    def backend(gm: fx.GraphModule, _inputs: Sequence[Any]) -> Any:
        try:
            candidate("native-channels-last").compile(copy.deepcopy(gm), fake_inputs(gm), CompileOptions(num_threads=1))
        except UnsupportedError as refusal:
            reasons.append(str(refusal))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(model, backend=backend)(torch.randn(2, 8, 9, 9).contiguous(memory_format=_LAST))
    assert reasons == ["no convolution gets images in another layout"]
