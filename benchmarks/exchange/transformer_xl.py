# SPDX-License-Identifier: Apache-2.0
"""Transformer-XL (Dai et al. 2019, arXiv:1901.02860) with the parameters of its gradient set.

The softmax is adaptive and tied to the embedding. There is no memory of earlier segments, because it has no parameters.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY = 267735
_LAYERS, _WIDTH, _HEADS, _INNER = 16, 1024, 16, 4096
_HEAD_WIDTH = _WIDTH // _HEADS
_ENDS = (0, 20000, 40000, 200000, VOCABULARY)
_CLUSTERS = [(_ENDS[at], _ENDS[at + 1], _WIDTH // 4**at) for at in range(4)]
"""First word, end and width of each cluster. The first cluster is the softmax's head."""


class TransformerXl(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = _parameters(*((end - begin, width) for begin, end, width in _CLUSTERS))
        self.projections = _parameters(*((_WIDTH, width) for _, _, width in _CLUSTERS[1:]))
        self.content_bias, self.place_bias = _parameters((_HEADS, _HEAD_WIDTH), (_HEADS, _HEAD_WIDTH))
        self.layers = nn.ModuleList(_Layer() for _ in range(_LAYERS))
        [self.head_projection] = _parameters((_WIDTH, _WIDTH))
        self.word_bias, self.cluster_bias = nn.Parameter(torch.zeros(VOCABULARY)), nn.Parameter(torch.zeros(3))
        [self.cluster_weight] = _parameters((3, _WIDTH))

    def forward(self, words: Tensor, targets: Tensor) -> Tensor:
        """Returns the loss. `words` and `targets` have a sequence in each row."""
        hidden = self._embed(words)
        places = _places(words.shape[1])
        for layer in self.layers:
            hidden = layer(hidden, places, self.content_bias, self.place_bias)
        return self._loss(hidden.flatten(0, 1), targets.flatten())

    def _embed(self, words: Tensor) -> Tensor:
        embedded = torch.zeros(*words.shape, _WIDTH)
        for at, (begin, end, _) in enumerate(_CLUSTERS):
            chosen = (words >= begin) & (words < end)
            found = F.embedding(words[chosen] - begin, self.tables[at])
            embedded[chosen] = found if at == 0 else F.linear(found, self.projections[at - 1])
        return embedded * _WIDTH**0.5

    def _loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        projected = F.linear(hidden, self.head_projection.t())
        head = torch.cat([self.tables[0], self.cluster_weight])
        head_bias = torch.cat([self.word_bias[: _ENDS[1]], self.cluster_bias])
        logs, losses = F.log_softmax(F.linear(projected, head, head_bias), -1), torch.zeros(len(targets))
        for at, (begin, end, _) in enumerate(_CLUSTERS):
            chosen = ((targets >= begin) & (targets < end)).nonzero().squeeze(1)
            own = targets[chosen] - begin
            if at == 0:
                found = logs[chosen, own]
            else:
                small = F.linear(hidden[chosen], self.projections[at - 1].t())
                tail = F.log_softmax(F.linear(small, self.tables[at], self.word_bias[begin:end]), -1)
                found = logs[chosen, _ENDS[1] + at - 1] + tail.gather(1, own[:, None]).squeeze(1)
            losses = losses.index_copy(0, chosen, -found)
        return losses.mean()


class _Layer(nn.Module):
    """Attention with relative places, and two linear layers, each with a norm behind its residual."""

    def __init__(self) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(_WIDTH, 3 * _WIDTH, bias=False)
        self.place = nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.out = nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.norm = nn.LayerNorm(_WIDTH)
        self.inner, self.outer = nn.Linear(_WIDTH, _INNER), nn.Linear(_INNER, _WIDTH)
        self.outer_norm = nn.LayerNorm(_WIDTH)

    def forward(self, hidden: Tensor, places: Tensor, content_bias: Tensor, place_bias: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        query, key, value = self.query_key_value(hidden).view(batch, length, 3, _HEADS, _HEAD_WIDTH).unbind(2)
        place = self.place(places).view(length, _HEADS, _HEAD_WIDTH)
        by_content = torch.einsum("bihd,bjhd->bhij", query + content_bias, key)
        by_place = torch.einsum("bihd,jhd->bhij", query + place_bias, place)
        distance = torch.arange(length)[:, None] - torch.arange(length)
        by_distance = by_place.gather(3, distance.clamp(min=0).expand(batch, _HEADS, length, length))
        scores = (by_content + by_distance) / _HEAD_WIDTH**0.5
        weights = scores.masked_fill(distance < 0, float("-inf")).softmax(-1)
        mixed = torch.einsum("bhij,bjhd->bihd", weights, value).reshape(batch, length, _WIDTH)
        hidden = self.norm(hidden + self.out(mixed))
        return self.outer_norm(hidden + self.outer(F.relu(self.inner(hidden))))


def _parameters(*shapes: tuple[int, int]) -> nn.ParameterList:
    return nn.ParameterList(nn.Parameter(torch.randn(shape) * 0.02) for shape in shapes)


def _places(length: int) -> Tensor:
    """Returns sines and cosines of the distances 0 to `length` - 1, one distance in each row."""
    rates = 10000 ** -(torch.arange(0, _WIDTH, 2) / _WIDTH)
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)
