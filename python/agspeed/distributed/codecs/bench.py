# SPDX-License-Identifier: Apache-2.0
"""Compares codecs on gradients, for `agspeed comm bench --codec`: bytes, time and error. All ranks run `measure`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import distributed

from agspeed.distributed.bench import time_in_turns
from agspeed.distributed.codecs import driver
from agspeed.distributed.codecs.catalog import CODECS
from agspeed.distributed.codecs.codec import Bucket, Codec, Pending
from agspeed.distributed.codecs.pipeline import GroupWire
from agspeed.distributed.codecs.powersgd import PowerSGD

__all__ = ["CodecRow", "measure"]

STEPS = 10
"""The steps over which errors are summed up."""


@dataclass(frozen=True)
class CodecRow:
    """The result for one codec. Errors are relative to the size of the dense average: norm over norm."""

    codec: str
    bytes: int
    """The size of one rank's gradients."""
    ratio: float | None
    """The bytes that a dense all-reduce sends, over the bytes that the codec sends. None for powersgd, whose bytes are
    not counted."""
    microseconds: float
    dense_microseconds: float
    """The time of a dense all-reduce of the same gradients, measured in turns."""
    step_error: float
    """The error of the first step that is not dense."""
    sum_error: float
    """The error of the sum of 10 such steps. With error feedback it is smaller than the error of one step."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class _CountingWire(GroupWire):
    """Counts the bytes that each rank sends, by the costs of the algorithms that send the fewest."""

    def __init__(self) -> None:
        super().__init__(None)
        self.sent = 0.0

    def all_reduce(self, values: torch.Tensor) -> Pending:
        self.sent += 2 * (self.size - 1) / self.size * values.nbytes
        return super().all_reduce(values)

    def all_gather(self, values: torch.Tensor) -> Pending:
        self.sent += (self.size - 1) * values.nbytes
        return super().all_gather(values)

    def all_to_all(self, rows: torch.Tensor) -> Pending:
        self.sent += (self.size - 1) / self.size * rows.nbytes
        return super().all_to_all(rows)


class _Origin:
    """The part of torch's `GradBucket` that PowerSGD uses."""

    def __init__(self, values: torch.Tensor, shapes: Sequence[torch.Size]) -> None:
        self._values, self._shapes = values, shapes

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def buffer(self) -> torch.Tensor:
        return self._values

    def gradients(self) -> list[torch.Tensor]:
        parts = self._values.split([shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]


class _Trial:
    """One codec on the gradients of this rank."""

    def __init__(self, codec: Codec, gradients: Sequence[torch.Tensor]) -> None:
        self.codec, self.wire = codec, _CountingWire()
        self.source = torch.cat([each.flatten() for each in gradients])
        shapes = [each.shape for each in gradients]
        values = torch.empty_like(self.source)
        names = tuple(map(str, range(len(shapes))))
        self.bucket = Bucket(values, names, tuple(shape.numel() for shape in shapes), _Origin(values, shapes))

    def step(self) -> torch.Tensor:
        self.bucket.values.copy_(self.source)
        driver.finish([driver.Run(self.codec.steps(self.bucket, self.wire), lambda: None)])
        return self.bucket.values

    def dense_step(self) -> torch.Tensor:
        self.bucket.values.copy_(self.source).div_(self.wire.size)
        distributed.all_reduce(self.bucket.values)
        return self.bucket.values


@torch.no_grad()
def measure(names: Sequence[str], gradients: Sequence[torch.Tensor], seconds: float) -> Iterator[CodecRow]:
    """Yields a row for each codec of the catalog that `names` lists. All ranks make the same call, with tensors of the
    same shapes, and consume all rows. seconds: about how long to time a row."""
    for name in names:
        yield _row(PowerSGD(start_step=2) if name == PowerSGD.name else CODECS[name](), gradients, seconds)


def _row(codec: Codec, gradients: Sequence[torch.Tensor], seconds: float) -> CodecRow:
    trial = _Trial(codec, gradients)
    exact = trial.source.double() / trial.wire.size
    distributed.all_reduce(exact)
    for _ in range(codec.start_step if isinstance(codec, PowerSGD) else 0):
        trial.step()
    trial.wire.sent = 0
    total = trial.step().double()
    ratio = 2 * (trial.wire.size - 1) / trial.wire.size * trial.source.nbytes / (trial.wire.sent or 1)
    step_error = _error(total, exact)
    for _ in range(STEPS - 1):
        total += trial.step()
    (own, _), (dense, _) = time_in_turns([trial.step, trial.dense_step], seconds)
    return CodecRow(
        codec.describe(),
        trial.source.nbytes,
        ratio if trial.wire.sent else None,
        1e6 * own,
        1e6 * dense,
        step_error,
        _error(total, STEPS * exact),
    )


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found - exact).norm() / exact.norm().clamp(min=torch.finfo(torch.float64).tiny))
