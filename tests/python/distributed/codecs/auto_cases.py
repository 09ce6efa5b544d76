# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of the codec `auto`, on every rank of a default group."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import agspeed
import agspeed.horovod.torch as hvd
from agspeed.distributed import hooks
from agspeed.distributed.codecs import auto, estimate
from tests.python.distributed import training


@contextlib.contextmanager
def _every_codec(*, pays: bool) -> Iterator[None]:
    """Lets each prediction and each trial come out in the same way, whatever the machine does meanwhile."""
    limit = math.inf if pays else 0.0
    with mock.patch.object(estimate, "_WORTH", limit), mock.patch.object(auto, "_SHORTER", limit):
        yield


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(training.WIDTH, 256), nn.Tanh(), nn.Linear(256, 256), nn.Linear(256, 4))


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for batch in training.batches(steps):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def _result(model: nn.Module, codec: auto.Auto, dense: nn.Module) -> dict[str, Any]:
    expected = torch.cat([each.detach().flatten() for each in dense.parameters()])
    weights = training.weights(model)
    difference = torch.cat([each.flatten() for each in weights]) - expected
    return {
        "weights": weights,
        "report": codec.report(),
        "error": float(difference.norm() / expected.norm()),
        "has_given_up": codec.has_given_up(),
    }


def _dense(steps: int) -> nn.Module:
    model = DistributedDataParallel(_model())
    _train(model, torch.optim.SGD(model.parameters(), lr=0.01), steps)
    return model


def ddp(pays: bool, steps: int) -> dict[str, Any]:
    model = DistributedDataParallel(_model(), bucket_cap_mb=0.1)
    codec = hooks.auto(model)
    with _every_codec(pays=pays):
        _train(model, torch.optim.SGD(model.parameters(), lr=0.01), steps)
    return _result(model, codec, _dense(steps))


def horovod(pays: bool, steps: int) -> dict[str, Any]:
    hvd.init()
    try:
        model, codec = _model(), hvd.Compression.auto()
        plain = torch.optim.SGD(model.parameters(), lr=0.01)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), compression=codec)
        with _every_codec(pays=pays):
            _train(model, optimizer, steps)
        result = _result(model, codec, _dense(steps))
        hvd.barrier()
        return result
    finally:
        hvd.shutdown()


def reported() -> tuple[str, Any, str]:
    """Returns the status, the section of the report, and the report as text."""
    model = _model()
    agspeed.optimize(model)
    wrapped = DistributedDataParallel(model)
    hooks.int8(wrapped)
    _train(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.01), 2)
    report = agspeed.report(wrapped)
    result = str(agspeed.status(wrapped)), report.to_dict()["codec"], " ".join(str(report).split())
    agspeed.restore(wrapped)
    return result
