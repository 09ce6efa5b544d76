# SPDX-License-Identifier: Apache-2.0
"""Random calls of operators that the native compiler covers: sizes, layouts and gradients, by family and seed.

The benchmark `operators/native` times these calls, and a test on demand compares their results with eager's. The same
family and seed always give the same call.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_LAST = torch.channels_last
_MOST_ELEMENTS = 1 << 21


@dataclass(frozen=True)
class Call:
    """`compute(*tensors)` gives one tensor, which is differentiated. `draw` sets the layout of `gradient`."""

    family: str
    description: str
    tensors: tuple[Tensor, ...]
    compute: Callable[..., Tensor]
    gradient: Tensor

    def leaves(self) -> list[Tensor]:
        """Copies of the tensors, with their layouts, that require gradients."""
        return [
            torch.empty_strided(tensor.shape, tensor.stride()).copy_(tensor).requires_grad_() for tensor in self.tensors
        ]


def draw(family: str, seed: int) -> Call:
    """Returns a random call. Raises ValueError if there is no such family."""
    if family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}; known: {', '.join(FAMILIES)}")
    source = _Source(seed)
    description, tensors, compute = FAMILIES[family](source)
    with torch.no_grad():
        result = compute(*tensors)
    gradient = torch.empty_strided(result.shape, result.stride())
    gradient.copy_(torch.randn(result.shape, generator=source.generator))
    return Call(family, f"{description} of {_described(tensors[0])}", tuple(tensors), compute, gradient)


def _described(tensor: Tensor) -> str:
    sizes = "x".join(map(str, tensor.shape))
    return sizes if tensor.is_contiguous() else f"{sizes} with strides {'x'.join(map(str, tensor.stride()))}"


class _Source:
    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *sizes: int) -> Tensor:
        return torch.randn(sizes, generator=self.generator)

    def image(self, most_channels: int = 256) -> Tensor:
        """Images of common sizes, in one of the two layouts."""
        for sizes in self._sizes(most_channels):
            if 1024 <= sizes[0] * sizes[1] * sizes[2] * sizes[3] <= _MOST_ELEMENTS:
                break
        return self.laid_out(self.normal(*sizes))

    def laid_out(self, image: Tensor) -> Tensor:
        return image.contiguous(memory_format=_LAST) if self.pick.random() < 0.5 else image

    def _sizes(self, most_channels: int) -> Iterator[list[int]]:
        while True:
            side = self.pick.choice([1, 2, 4, 7, 8, 14, 16, 28, 32, 56])
            channels = self.pick.choice([count for count in (8, 16, 24, 40, 64, 96, 256) if count <= most_channels])
            yield [self.pick.choice([1, 2, 8, 16, 32, 64]), channels, side, max(1, side - self.pick.choice([0, 0, 1]))]


Drawn = tuple[str, list[Tensor], Callable[..., Tensor]]


def _depthwise(source: _Source) -> Drawn:
    return _depthwise_of(source.image(), source.pick.choice([1, 1, 2]), source)


def _depthwise_of_240(source: _Source) -> Drawn:
    """As in MobileNetV3, on images of 4x4 to 16x16 pixels."""
    side = source.pick.choice([4, 5, 6, 7, 8, 10, 12, 14, 16])
    image = source.laid_out(source.normal(source.pick.choice([4, 8, 16, 32]), 240, side, side))
    return _depthwise_of(image, 1, source)


def _depthwise_of(image: Tensor, stride: int, source: _Source) -> Drawn:
    channels = image.shape[1]
    weight = source.normal(channels, 1, 5, 5)

    def compute(x: Tensor, w: Tensor) -> Tensor:
        return functional.conv2d(x, w, None, stride, 2, 1, channels)

    return f"depthwise 5x5, stride {stride},", [image, weight], compute


def _pointwise_chain(source: _Source) -> Drawn:
    image = source.image()
    before, after = image.shape[1], source.pick.choice([16, 24, 64, 96, 240])
    weight = source.normal(after, before, 1, 1) / before**0.5

    def compute(x: Tensor, w: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        y = functional.conv2d(x, w)
        return functional.silu(functional.batch_norm(y, None, None, scale, shift, training=True))

    tensors = [image, weight, source.normal(after) + 1, source.normal(after)]
    return f"convolution 1x1 to {after} channels, batch norm, SiLU,", tensors, compute


def _max_pool(source: _Source) -> Drawn:
    image = source.image()
    while min(image.shape[2:]) < 2:
        image = source.image()
    kernel, stride = source.pick.choice([(2, 2), (3, 2), (3, 1)])
    options: dict[str, Any] = {"kernel_size": kernel, "stride": stride, "padding": kernel // 2 if kernel == 3 else 0}
    return f"max pool {kernel}x{kernel}, stride {stride},", [image], lambda x: functional.max_pool2d(x, **options)


def _norm(columns: int, source: _Source) -> tuple[list[Tensor], Callable[..., Tensor]]:
    parameters = [source.normal(columns) + 1, source.normal(columns)]
    return parameters, lambda x, w, b: functional.layer_norm(x, [columns], w, b)


def _layer_norm(source: _Source) -> Drawn:
    columns = source.pick.choice([8, 30, 64, 96, 128, 192, 384, 768, 1024])
    rows = source.pick.choice([1, 16, 49, 64, 196, 256, 512])
    batch = source.pick.choice([count for count in (1, 2, 8, 32) if count * rows * columns <= _MOST_ELEMENTS])
    parameters, compute = _norm(columns, source)
    return "layer norm", [source.normal(batch, rows, columns), *parameters], compute


def _transposed_layer_norm(source: _Source) -> Drawn:
    columns = source.pick.choice([8, 30, 64, 96, 128, 192, 384, 768, 1024])
    rows = source.pick.choice([16, 24, 49, 64, 196, 256, 784])
    batch = source.pick.choice([count for count in (1, 2, 8, 32) if count * rows * columns <= _MOST_ELEMENTS])
    parameters, compute = _norm(columns, source)
    return "layer norm", [source.normal(batch, columns, rows).mT, *parameters], compute


def _padding(source: _Source) -> Drawn:
    image = source.image()
    pad = [source.pick.choice([0, 1, 2, 3]) for _ in range(4)]
    return f"pad {pad}", [image], lambda x: functional.pad(x, pad)


FAMILIES: dict[str, Callable[[_Source], Drawn]] = {
    "depthwise": _depthwise,
    "depthwise_of_240": _depthwise_of_240,
    "layer_norm": _layer_norm,
    "layer_norm_transposed": _transposed_layer_norm,
    "max_pool": _max_pool,
    "padding": _padding,
    "pointwise_chain": _pointwise_chain,
}
