# SPDX-License-Identifier: Apache-2.0
"""A gated recurrent cell unrolled by hand: hundreds of tiny element-wise operators in one graph."""

import torch
from torch import Tensor, nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, Workload, cross_entropy, supervised


class UnrolledRnn(nn.Module):
    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, width)
        self.inputs, self.state = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width, bias=False)
        self.head = nn.Linear(width, 128)

    def forward(self, ids: Tensor) -> Tensor:
        projected = self.inputs(self.embed(ids))
        hidden, outputs = torch.zeros_like(projected[:, 0, : projected.shape[2] // 2]), []
        for position in range(ids.shape[1]):
            gate, candidate = (projected[:, position] + self.state(hidden)).chunk(2, dim=1)
            gate = torch.sigmoid(gate)
            hidden = gate * hidden + (1 - gate) * torch.tanh(candidate)
            outputs.append(hidden)
        return self.head(torch.stack(outputs, dim=1))


def make() -> Training:
    model = UnrolledRnn()
    batches = data.next_token_batches(data.characters(), batch=16, length=16, count=16, seed=20)
    return supervised(model, torch.optim.Adam(model.parameters(), lr=5e-3), cross_entropy, batches)


WORKLOAD = Workload("unrolled_rnn", "16 hand-written recurrent steps of tiny operators, source text", 20, make)
