# SPDX-License-Identifier: Apache-2.0
"""Gradients of published models (`horovod/gradient_sets.toml`), from one backward of the model at each rank.

The weights are random, and equal at all ranks. The batches are real and differ between ranks, but they are small:

- Images are patches of photographs, smaller than the model's own size.
- Words of Transformer-XL are torch's source text. Their numbers, by falling frequency, are spread over the vocabulary,
  so that all parts of the softmax get gradients.
- VGG-16 has no norms. With plain random weights, half of its units have no gradients, because all images look alike to
  them. Its weights and biases are therefore scaled on a first batch, so that the outputs of each unit have mean 0 and
  variance 1 (Salimans and Kingma 2016, arXiv:1602.07868).

A set of more bytes than wanted is sampled: each parameter contributes evenly spaced pieces of neighbouring values.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision import models

from benchmarks.exchange.transformer_xl import VOCABULARY, TransformerXl
from benchmarks.horovod import gradient_sets
from benchmarks.workloads import data

PIECE = 4096
"""Values. Smaller parameters stay whole."""
_IMAGES, _SENTENCES, _LENGTH = 16, 2, 64
_MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "inception": (lambda: models.inception_v3(weights=None, aux_logits=False, init_weights=True), 96),
    "resnet101": (lambda: models.resnet101(weights=None), 96),
    "vgg16": (lambda: models.vgg16(weights=None), 96),
    "transformer_xl": (TransformerXl, 0),
}
"""Set -> its model, and the pixels of an image's side."""


@dataclass(frozen=True)
class Contents:
    """The gradients of all ranks: `files` has a file of float32 values for each of them. `layers` has the bytes of each
    layer's parameters in these files, in order of the forward pass. `bytes` is the size before sampling."""

    bytes: int
    layers: list[list[int]]
    files: list[str]

    @property
    def exchanged_bytes(self) -> int:
        return sum(map(sum, self.layers))


def write(name: str, ranks: int, most_bytes: int, folder: Path) -> Contents:
    """Makes the gradients of a set, and writes at most about `most_bytes` of them for each rank, unless the folder has
    these files. Raises ValueError if no set has that name."""
    whole = gradient_sets.num_bytes(gradient_sets.load(name))
    share = min(1.0, most_bytes / whole)
    layers = [[4 * kept(math.prod(shape), share) for shape in layer] for layer in gradient_sets.shapes(name)]
    paths = [folder / f"{name}-{most_bytes}-{rank}-of-{ranks}.bin" for rank in range(ranks)]
    found = Contents(whole, layers, list(map(str, paths)))
    if not all(path.exists() and path.stat().st_size == found.exchanged_bytes for path in paths):
        folder.mkdir(parents=True, exist_ok=True)
        for path, gradients in zip(paths, _backwards(name, ranks), strict=True):
            with path.open("wb") as file:
                for gradient in gradients:
                    pieces(gradient, share).numpy().tofile(file)
    return found


def kept(count: int, share: float) -> int:
    """Returns how many of `count` values `pieces` keeps."""
    return count if share >= 1 or count <= PIECE else max(1, round(count * share / PIECE)) * PIECE


def pieces(values: Tensor, share: float) -> Tensor:
    """Returns about that share of the values: evenly spaced pieces of `PIECE` neighbours."""
    flat = values.detach().flatten()
    if (number := kept(len(flat), share)) == len(flat):
        return flat
    begins = torch.linspace(0, len(flat) - PIECE, number // PIECE, dtype=torch.float64).long()
    return flat[(begins[:, None] + torch.arange(PIECE)).flatten()]


def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return _MODELS[name][0]()


def in_order(name: str, model: nn.Module) -> list[nn.Parameter]:
    """Returns the model's parameters in the order of the set. Raises ValueError if their shapes are not the set's."""
    waiting = defaultdict(list)
    for parameter in model.parameters():
        waiting[tuple(parameter.shape)].append(parameter)
    shapes = [shape for layer in gradient_sets.shapes(name) for shape in layer]
    if (own := sorted(tuple(each.shape) for each in model.parameters())) != sorted(shapes):
        raise ValueError(
            f"{name}: {len(own)} parameters of the model do not have the shapes of its set ({len(shapes)})"
        )
    return [waiting[shape].pop(0) for shape in shapes]


def _backwards(name: str, ranks: int) -> Iterator[list[Tensor]]:
    """Yields the gradients of one rank after another, in the order of the set."""
    model = model_of(name)
    ordered = in_order(name, model)
    if not any(isinstance(module, nn.BatchNorm2d | nn.LayerNorm) for module in model.modules()):
        _scale(name, model)
    for rank in range(ranks):
        model.zero_grad()
        torch.manual_seed(1 + rank)  # of dropout
        _loss(name, model, rank).backward()
        yield [parameter.grad for parameter in ordered if parameter.grad is not None]


@torch.no_grad()
def _scale(name: str, model: nn.Module) -> None:
    """Scales weights and biases, from the first layer to the last one, by the outputs for a batch of no rank."""

    def scale(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        over = [at for at in range(output.dim()) if at != 1]
        deviation, mean = torch.std_mean(output, over)
        module.weight.div_(deviation.view(-1, *[1] * (module.weight.dim() - 1)))  # type: ignore[operator, union-attr]
        module.bias.sub_(mean).div_(deviation)  # type: ignore[operator, union-attr]
        found: Tensor = module.forward(*inputs)
        return found

    hooks = [
        module.register_forward_hook(scale) for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    _loss(name, model, rank=-1)
    for hook in hooks:
        hook.remove()


def _loss(name: str, model: nn.Module, rank: int) -> Tensor:
    if size := _MODELS[name][1]:
        images, labels = data.photo_patches(size, _IMAGES, seed=1 + rank)
        return F.cross_entropy(model((images - 0.5) / 0.25), labels)
    words = data.words(VOCABULARY)
    spread = (words * ((VOCABULARY - 1) / int(words.max()))).long()
    [batch] = data.next_token_batches(spread, _SENTENCES, _LENGTH, count=1, seed=1 + rank)
    loss: Tensor = model(*batch)
    return loss
