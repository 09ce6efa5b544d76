# SPDX-License-Identifier: Apache-2.0
"""Message passing on the nearest-neighbour graph of the digits: gather, edge network, scatter."""

import torch
from sklearn.neighbors import kneighbors_graph
from torch import Tensor, nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Batch, Training, Workload, supervised


class MessageLayer(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.own, self.message = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)
        self.gate = nn.Linear(1, outputs)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, distance: Tensor) -> Tensor:
        messages = self.message(x)[source] * torch.sigmoid(self.gate(distance))
        return torch.relu(self.own(x) + torch.zeros_like(messages[: x.shape[0]]).index_add(0, target, messages))


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([MessageLayer(64, 32), MessageLayer(32, 32)])
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, distance: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, source, target, distance)
        return self.head(x)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    inputs, labels = batch
    return nn.functional.cross_entropy(model(*inputs), labels)


def make() -> Training:
    images, labels = data.digits()
    edges = kneighbors_graph(images.numpy(), 8, mode="distance").tocoo()
    source, target = torch.from_numpy(edges.col).long(), torch.from_numpy(edges.row).long()
    distance = torch.from_numpy(edges.data).float().unsqueeze(1)
    model = GraphNet()
    batches = [((images, source, target, distance), labels)]
    return supervised(model, torch.optim.Adam(model.parameters(), lr=1e-2), loss_of, batches)


WORKLOAD = Workload("gnn_scatter", "gather and index_add over 14,376 edges of the digits' neighbour graph", 13, make)
