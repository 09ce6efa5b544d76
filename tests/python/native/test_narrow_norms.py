# SPDX-License-Identifier: Apache-2.0
"""Batch, layer and group norm of 16-bit images, with float32 parameters (as under autocast) and with 16-bit ones."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agspeed.backends import CompileOptions, candidate
from tests.python.support.pairs import pairs

pytestmark = pytest.mark.usefixtures("needs_native")
_IMAGES = ((4, 16, 6, 6), (2, 3, 33, 17), (64, 128), (16, 24, 2, 2), (6, 33, 5))
_LAST = ((4, 16, 6, 6), (3, 19, 33, 17), (2, 130, 1, 5))
_TYPES = {
    "bf16 images": (torch.bfloat16, False),
    "f16 model": (torch.float16, True),
    "f16 images": (torch.float16, False),
    "bf16 model": (torch.bfloat16, True),
}
"""{name: (type of the images, whether parameters and running statistics have it too)}."""


@pytest.mark.parametrize(("shape", "types"), pairs(_IMAGES, list(_TYPES)))
def test_it_becomes_kernels(shape: tuple[int, ...], types: str) -> None:
    program = _compare(_block(shape), _images(shape), types)
    assert not re.search(r"call aten\.\w*batch_norm", program), program


@pytest.mark.parametrize(("shape", "types"), pairs(_LAST, list(_TYPES)))
def test_channels_last_images_become_kernels(shape: tuple[int, ...], types: str) -> None:
    program = _compare(_block(shape), _images(shape).contiguous(memory_format=torch.channels_last), types)
    assert not re.search(r"call aten\.\w*batch_norm", program), program


@pytest.mark.parametrize(
    ("arguments", "types"),
    pairs([(affine, tracks) for affine in (True, False) for tracks in (True, False)], list(_TYPES)),
)
@pytest.mark.parametrize("shape", [(6, 24, 5, 7), (6, 8)], ids=["kernels", "a call"])
def test_without_parameters_or_running_statistics(
    shape: tuple[int, ...], arguments: tuple[bool, bool], types: str
) -> None:
    affine, tracks = arguments
    program = _compare(_block(shape, affine=affine, track_running_stats=tracks), _images(shape), types)
    assert bool(re.search(r"call aten\.\w*batch_norm", program)) == (len(shape) == 2), program


@pytest.mark.parametrize("types", _TYPES)
def test_with_frozen_statistics(types: str) -> None:
    _compare(_block((4, 16, 6, 6)).eval(), _images((4, 16, 6, 6)), types)


@pytest.mark.parametrize(
    ("norm", "types"),
    pairs([nn.LayerNorm(24), nn.LayerNorm((5, 24), bias=False), nn.GroupNorm(3, 6)], list(_TYPES)),
    ids=lambda value: value if isinstance(value, str) else repr(value),
)
def test_other_norms(norm: nn.Module, types: str) -> None:
    torch.manual_seed(1)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    _compare(nn.Sequential(nn.Tanh(), norm, nn.SiLU()), _images((8, 6, 5, 24)), types)


@pytest.mark.parametrize("types", ["bf16 images", "f16 images"])
@pytest.mark.parametrize("norm", [nn.LayerNorm(24), nn.BatchNorm1d(24)], ids=["layer", "batch"])
def test_float32_statistics_are_saved_as_float32(norm: nn.Module, types: str) -> None:
    """Eager saves them so. With 16 bits, gradients would err more than eager's."""
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    run = _compiled(norm, [])
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run(_images((40, 24)).to(_TYPES[types][0]).requires_grad_())
    statistics = [tensor for tensor in saved if tensor.numel() in (24, 40) and not isinstance(tensor, nn.Parameter)]
    assert {tensor.dtype for tensor in statistics} == {torch.float32}, [(t.dtype, t.shape) for t in saved]


def test_a_network_under_autocast_trains_as_eager_does() -> None:
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 24, 3, stride=2),
        nn.BatchNorm2d(24),
        nn.SiLU(),
    )
    images = torch.randn(6, 3, 20, 20)

    def losses(model: nn.Module, run: Callable[[Tensor], Tensor]) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        found = []
        for _ in range(10):
            with torch.autocast("cpu", torch.bfloat16):
                loss = (run(images).float() - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    seen: list[Any] = []
    twin = copy.deepcopy(model)
    wanted = losses(model, model)
    got = losses(twin, _compiled(twin, seen))
    assert len(seen) == 1
    torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), rtol=0.02, atol=0)
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(dict(twin.named_buffers())[name], buffer, rtol=0.05, atol=0.02)


def _block(shape: tuple[int, ...], **options: bool) -> nn.Module:
    torch.manual_seed(1)
    norm = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d)(shape[1], **options)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return nn.Sequential(nn.Tanh(), norm, nn.SiLU())


def _images(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)) + 0.5


def _compare(model: nn.Module, images: Tensor, types: str) -> str:
    """Asserts that results have eager's types and strides, and that errors against float64 are about eager's.

    Returns the native program as text.
    """
    dtype, is_whole = _TYPES[types]
    model = model.to(dtype) if is_whole else model
    images = images.to(dtype)
    twin, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    seen: list[Any] = []
    got = _step(twin, _compiled(twin, seen), images)
    assert len(seen) == 1
    wanted, references = _step(model, model, images), _step(exact, exact, images.double())
    for index, (mine, eager, reference) in enumerate(zip(got, wanted, references, strict=True)):
        assert (mine.dtype, mine.stride()) == (eager.dtype, eager.stride()), f"result {index}"
        if not mine.is_floating_point():
            assert mine.equal(eager)
            continue
        error, yardstick = ((found.double() - reference).square().mean().sqrt().item() for found in (mine, eager))
        unit = torch.finfo(mine.dtype).eps * reference.double().square().mean().sqrt().item()
        assert error <= 2 * yardstick + unit, f"result {index} errs by {error}, eager by {yardstick}"
    program: str = seen[0].generated
    return program


def _compiled(model: nn.Module, seen: list[Any]) -> Callable[[Tensor], Tensor]:
    def backend(gm: Any, _inputs: list[Any]) -> Any:
        inputs = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        seen.append(candidate("native").compile(gm, inputs, CompileOptions(num_threads=torch.get_num_threads())))
        return seen[-1]

    torch._dynamo.reset()
    run: Callable[[Tensor], Tensor] = torch.compile(model, backend=backend, dynamic=False, fullgraph=True)
    return run


def _step(model: nn.Module, run: Callable[[Tensor], Tensor], images: Tensor) -> list[Tensor]:
    """Returns output, gradients and buffers after one step."""
    images = images.clone().requires_grad_()
    result = run(images)
    result.backward(torch.randn(result.shape, generator=torch.Generator().manual_seed(5)).to(result.dtype))
    gradients = [images.grad, *(parameter.grad for parameter in model.parameters())]
    return [result.detach(), *(gradient for gradient in gradients if gradient is not None), *model.buffers()]
