# SPDX-License-Identifier: Apache-2.0
"""The interface of codecs, which send gradients in fewer bytes and change them by that.

A codec averages a bucket of gradients over the ranks of a group. It writes this as a generator: it starts a collective,
yields a function that waits for the result, and gets the result back. So a driver can have several buckets in flight.
The driver for `DistributedDataParallel` is pipeline.py, and the one for Horovod is `horovod/torch/codec_runs.py`.

All ranks must resume generators of one group in the same order, and codecs must start the same collectives at all
ranks. A codec that depends on values, such as NaN, therefore decides by data that all ranks have received.

Threading: one thread at a time uses a codec. Ownership: a codec owns its memory; buckets belong to the driver.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Generator
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

from agspeed.errors import UserError
from agspeed.log import warn_once

__all__ = ["Bucket", "Codec", "Pending", "Steps", "Wire", "agree", "average_densely"]

Pending = Callable[[], torch.Tensor]
"""Waits for a collective, and returns its result. Raises the error of the transport."""

Steps = Generator[Pending, torch.Tensor, None]


class Wire(Protocol):
    """The collectives of one group. They start at once and return a function that waits. All ranks call them in the
    same order, with tensors of equal shapes and types."""

    @property
    def rank(self) -> int:
        """This rank's number in the group."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def all_reduce(self, values: torch.Tensor) -> Pending:
        """Sums up in place. The result is `values`."""

    def all_gather(self, values: torch.Tensor) -> Pending:
        """The result has one more dimension in front: row r is the tensor of rank r."""

    def all_to_all(self, rows: torch.Tensor) -> Pending:
        """Sends row r to rank r. Row r of the result is from rank r. `rows` has one row for each rank."""


class Bucket(NamedTuple):
    """Gradients that are reduced together."""

    values: torch.Tensor
    """All gradients, one after another: contiguous, with one dimension. The average replaces them."""
    names: tuple[str, ...]
    """The parameters' names, which are unique within a codec."""
    sizes: tuple[int, ...]
    """The number of values of each parameter."""
    origin: Any = None
    """torch's `GradBucket`, under `DistributedDataParallel` only."""


class Codec(abc.ABC):
    """A way to send gradients. Objects can be pickled, with their state."""

    name: ClassVar[str]

    num_refused: int = 0
    """How many buckets were sent densely because a rank had NaN or infinity in them."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Returns the name with all options, like "topk(density=0.01, ...)". It must be equal at all ranks."""

    @abc.abstractmethod
    def steps(self, bucket: Bucket, wire: Wire) -> Steps:
        """Replaces the bucket's values by their average over the ranks, as well as the codec can express it."""

    def is_dense(self, bucket: Bucket) -> bool:
        """Whether the driver averages the bucket densely in this step, by itself. Otherwise it calls `steps`. Drivers
        ask once for each bucket in each step."""
        return False

    def sentence(self) -> str:
        """Returns how gradients are sent, as a sentence without its full stop."""
        return f"gradients are sent by {self.describe()}"

    def report(self) -> list[dict[str, Any]]:
        """Returns a row for each bucket whose codec was chosen by measurement; see `Auto.report`."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of what the codec has kept for later steps at this rank; {} if it keeps nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues with the result of `state_dict`. Raises: UserError for another codec's state."""
        if state:
            raise UserError(f"{self.describe()} keeps no state, so it cannot load one; load {{}} or nothing.")

    def _refuse(self, bucket: Bucket) -> None:
        """Notes that a bucket is sent densely, because a rank had NaN or infinity in it."""
        self.num_refused += 1
        warn_once(
            ("codec refused", self.name, bucket.names),
            f"gradients of {_some(bucket.names)} had NaN or infinity at some rank, so {self.name} sent this bucket "
            "densely. It does so each time, and says so once for these parameters.",
        )


def _some(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} other parameters"


def average_densely(values: torch.Tensor, wire: Wire) -> Steps:
    """Averages without a codec, as `DistributedDataParallel` does: divides first, and then sums up."""
    values.div_(wire.size)
    yield wire.all_reduce(values)


_DESCRIPTION_BYTES = 256


def agree(own: str, wire: Wire, device: torch.device, sentence: str) -> Steps:
    """Checks that all ranks pass the same text, such as the description of a codec. It may have 256 bytes.

    Raises, at every rank: UserError if the texts differ. `sentence` is its message, with {} for the texts of all ranks.
    """
    text = own.encode()[:_DESCRIPTION_BYTES].ljust(_DESCRIPTION_BYTES)
    rows = yield wire.all_gather(torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device))
    texts = [bytes(row).decode(errors="replace").rstrip() for row in rows.tolist()]
    if len(set(texts)) > 1:
        raise UserError(sentence.format("; ".join(f"rank {rank}: {each}" for rank, each in enumerate(texts))))
