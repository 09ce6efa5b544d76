# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in the test of operations within a captured model."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

import agspeed
import agspeed.horovod.torch as hvd
from tests.python.horovod.programs import job


class _Exchanging(nn.Module):
    """A model whose forward calls the user's own operations."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = hvd.alltoall(hvd.allreduce(x, op=hvd.Average), name="rows")
        return rows + hvd.broadcast(x, 0).mean() + hvd.allgather(x)[:4]


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), hvd.SyncBatchNorm(5), nn.ReLU(), _Exchanging(), nn.Linear(5, 1))


def captured() -> dict[str, Any]:
    """Returns outputs and gradients of a model that Dynamo captures and of one that it does not, and the warnings."""
    with job() as (rank, _size):
        graphs: list[torch.fx.GraphModule] = []

        def keep(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
            graphs.append(graph)
            return graph

        plain = _model()
        compiled: Any = torch.compile(_model(), backend=keep)
        found: dict[str, Any] = {"captured": [], "plain": []}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            generator = torch.Generator().manual_seed(rank)
            for _ in range(2):
                x = torch.randn(4, 3, generator=generator)
                for name, model in (("captured", compiled), ("plain", plain)):
                    model.zero_grad()
                    result = model(x)
                    result.square().sum().backward()
                    found[name] += [result.detach(), *(each.grad.clone() for each in model.parameters())]
        found["warned"] = [str(each.message) for each in caught]
        found["graphs"] = len(graphs)
        return found


class _Normalized(nn.Module):
    def __init__(self, momentum: float | None) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 5), hvd.SyncBatchNorm(5, momentum=momentum), nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(torch.tanh(self.first(x)))))


def optimized(backend: str, momentum: float | None) -> dict[str, Any]:
    """Returns weights and statistics after the same training with and without agspeed, and the status."""
    with job() as (rank, _size):
        found: dict[str, Any] = {}
        for name in ("plain", "optimized"):
            torch.manual_seed(0)
            model = _Normalized(momentum)
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
            if name == "optimized":
                agspeed.optimize(model, mode="deterministic", backends=[backend])
            generator = torch.Generator().manual_seed(rank)
            for _ in range(12):
                optimizer.zero_grad()
                model(torch.randn(4, 3, generator=generator)).square().sum().backward()
                optimizer.step()
            found[name] = {key: value.clone() for key, value in model.state_dict().items()}
        found["status"] = str(agspeed.status(model))
        return found
