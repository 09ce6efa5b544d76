# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of codecs, on every rank of a default group."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import agspeed.horovod.torch as hvd
from agspeed.distributed import hooks
from agspeed.distributed.codecs import bench, sample_gradients
from agspeed.distributed.codecs.catalog import CODECS
from agspeed.distributed.codecs.codec import Codec
from agspeed.errors import UserError
from tests.python.distributed import training

_SMALL_BUCKETS = 0.002  # MiB; four buckets or more
Options = dict[str, Any]


def message_of(error: Exception) -> str:
    return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])


def _wrapped(codec: str, options: Options, **wrapping: Any) -> tuple[DistributedDataParallel, Codec | None]:
    model = DistributedDataParallel(training.model(depth=4), **wrapping)
    return model, getattr(hooks, codec)(model, **options) if codec else None


def _train(model: nn.Module, steps: int, offset: int = 0) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in list(training.batches(offset + steps))[offset:]:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


# --- DistributedDataParallel ------------------------------------------------------------------------------------------


def ddp_gradients(codec: str, options: Options, steps: int = 3) -> list[torch.Tensor]:
    """Returns all gradients of each step. The weights do not change."""
    model, _ = _wrapped(codec, options, bucket_cap_mb=_SMALL_BUCKETS)
    found = []
    for batch in training.batches(steps):
        model.zero_grad()
        model(batch).square().mean().backward()
        found.append(torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None]))
    return found


def ddp_weights(codec: str, options: Options, steps: int = 6) -> list[torch.Tensor]:
    model, _ = _wrapped(codec, options, bucket_cap_mb=_SMALL_BUCKETS)
    _train(model, steps)
    return training.weights(model)


def ddp_with_uneven_inputs(codec: str, options: Options) -> list[torch.Tensor]:
    """Rank r has 2 + r batches."""
    model, _ = _wrapped(codec, options, bucket_cap_mb=_SMALL_BUCKETS)
    with model.join():
        _train(model, 2 + dist.get_rank())
    return training.weights(model)


def ddp_with_infinity(codec: str, options: Options) -> tuple[torch.Tensor, int]:
    """Returns the gradients of a backward in which one rank has infinity, and the number of buckets that were sent
    densely because of it."""
    model, made = _wrapped(codec, options)
    loss = model(next(training.batches(1))).square().mean()
    (loss * (math.inf if dist.get_rank() == 1 else 1)).backward()
    assert made is not None
    gradients = [each.grad.flatten() for each in model.parameters() if each.grad is not None]
    return torch.cat(gradients), made.num_refused


def ddp_that_differs(codecs: list[str]) -> str:
    """Sets another codec at each rank. Returns the error of the backward."""
    model, _ = _wrapped(codecs[dist.get_rank()], {})
    try:
        model(next(training.batches(1))).square().mean().backward()
    except Exception as error:
        return message_of(error)
    return "nothing was raised"


def ddp_with_two_codecs() -> str:
    """Sets a second codec. Returns its error."""
    model, _ = _wrapped("int8", {})
    try:
        hooks.topk(model)
    except UserError as error:
        return str(error)
    return "nothing was raised"


def ddp_resumed(codec: str, options: Options, folder: Path) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Returns the weights of a training without and with a checkpoint in its middle."""
    model, made = _wrapped(codec, options)
    assert made is not None
    _train(model, 4)
    file = folder / f"{codec}-{dist.get_rank()}.pt"
    torch.save({"model": model.module.state_dict(), "codec": made.state_dict()}, file)
    _train(model, 4, offset=4)
    saved = torch.load(file)
    again, loaded = _wrapped(codec, options)
    assert loaded is not None
    again.module.load_state_dict(saved["model"])
    loaded.load_state_dict(saved["codec"])
    _train(again, 4, offset=4)
    return training.weights(model), training.weights(again)


# --- training to a loss -----------------------------------------------------------------------------------------------


def _language_model() -> tuple[nn.Module, Any]:
    """The next character after 8 of torch's own text."""
    text = Path(inspect.getfile(torch.optim.SGD)).read_text(encoding="utf-8")
    codes = torch.tensor([min(ord(each), 127) for each in text])
    windows = codes.unfold(0, 9, 1)
    model = nn.Sequential(
        nn.Embedding(128, 16), nn.Flatten(), nn.Linear(128, 96), nn.Tanh(), nn.Linear(96, 128)
    )  # fmt: skip

    def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        rows = windows[torch.randint(len(windows), (32,), generator=generator)]
        return rows[:, :8], rows[:, 8]

    return model, batch


def _conv_net() -> tuple[nn.Module, Any]:
    """Noisy images of ten patterns."""
    patterns = torch.randn(10, 1, 8, 8, generator=torch.Generator().manual_seed(7))
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10)
    )

    def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(10, (32,), generator=generator)
        return patterns[labels] + 1.5 * torch.randn(32, 1, 8, 8, generator=generator), labels

    return model, batch


_MODELS = {"language model": _language_model, "conv net": _conv_net}


def losses(model: str, codec: str, options: Options, steps: int) -> tuple[float, float]:
    """Returns the first and the final loss, averaged over the ranks. If a codec has a momentum, the optimizer has
    none."""
    torch.manual_seed(1)
    own, batch = _MODELS[model]()
    wrapped = DistributedDataParallel(own)
    if codec:
        getattr(hooks, codec)(wrapped, **options)
    momentum = 0.0 if "momentum" in options else 0.9
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.02, momentum=momentum)
    generator, values = torch.Generator().manual_seed(dist.get_rank()), []
    for _ in range(steps):
        inputs, labels = batch(generator)
        loss = nn.functional.cross_entropy(wrapped(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.detach())
    ends = torch.stack([torch.stack(values[:3]).mean(), torch.stack(values[-steps // 8 :]).mean()])
    dist.all_reduce(ends, op=dist.ReduceOp.AVG)
    return float(ends[0]), float(ends[1])


def compared() -> list[dict[str, Any]]:
    """Returns the rows of `agspeed comm bench --codec all` on built-in gradients."""
    gradients = sample_gradients.built_in(dist.get_rank())
    return [row.to_json() for row in bench.measure(list(CODECS), gradients, 0.01)]


# --- Horovod ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _job() -> Iterator[None]:
    hvd.init()
    try:
        yield
        hvd.barrier()
    finally:
        hvd.shutdown()


def _optimizer(model: nn.Module, compression: Any, **options: Any) -> Any:
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    return hvd.DistributedOptimizer(plain, model.named_parameters(), compression=compression, **options)


def hvd_weights(codec: str, options: Options, steps: int = 6, **wrapping: Any) -> list[torch.Tensor]:
    with _job():
        model = training.model(depth=4)
        compression = getattr(hvd.Compression, codec)
        optimizer = _optimizer(model, compression(**options) if options else compression, **wrapping)
        for batch in training.batches(steps):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        return training.weights(model)


def hvd_that_differs(codecs: list[str]) -> str:
    """Sets another compression at each rank. Returns the error of the first step."""
    hvd.init()
    try:
        model = training.model()
        optimizer = _optimizer(model, getattr(hvd.Compression, codecs[hvd.rank()]))
        model(next(training.batches(1))).square().mean().backward()
        optimizer.step()
    except Exception as error:
        return message_of(error)
    finally:
        hvd.shutdown()
    return "nothing was raised"


def hvd_after_a_join(codec: str) -> list[torch.Tensor]:
    """The last rank has no batches, and joins before the first step of the others."""
    with _job():
        model = training.model()
        optimizer = _optimizer(model, getattr(hvd.Compression, codec))
        if hvd.rank() < hvd.size() - 1:
            model(next(training.batches(1))).square().mean().backward()
            optimizer.step()
        hvd.join()
        return training.weights(model)


def hvd_wrong_uses() -> dict[str, str]:
    """Returns the errors of uses that codecs do not have."""
    found = {}
    with _job():
        model = training.model()
        uses: dict[str, Any] = {
            "allreduce": lambda: hvd.allreduce(torch.ones(3), compression=hvd.Compression.int8),
            "op": lambda: _optimizer(model, hvd.Compression.topk, op=hvd.Adasum),
            "predivide": lambda: _optimizer(model, hvd.Compression.int8, gradient_predivide_factor=2.0),
        }
        for name, use in uses.items():
            try:
                use()
                found[name] = "nothing was raised"
            except Exception as error:
                found[name] = message_of(error)
    return found
