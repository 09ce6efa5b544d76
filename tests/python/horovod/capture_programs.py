# SPDX-License-Identifier: Apache-2.0
"""What ranks do in the test of operations within a model that is captured; each function runs at every rank."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

import agspeed.horovod.torch as hvd
from tests.python.horovod.programs import job


class _Exchanging(nn.Module):
    """Operations of the user's in a forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = hvd.alltoall(hvd.allreduce(x, op=hvd.Average), name="rows")
        return rows + hvd.broadcast(x, 0).mean() + hvd.allgather(x)[:4]


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), hvd.SyncBatchNorm(5), nn.ReLU(), _Exchanging(), nn.Linear(5, 1))


def captured() -> dict[str, Any]:
    """Outputs and gradients of a model that Dynamo captures and of one that it does not, and what was warned of."""
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
