# SPDX-License-Identifier: Apache-2.0
"""Ranks within one process: runs the generators of codecs in lockstep, and computes their collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from agspeed.distributed.codecs.codec import Bucket, Codec, Pending, Steps


class LocalGroup:
    """Computes a collective once all ranks have started it. `started` lists the kinds of collectives so far."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.started: list[str] = []
        self._calls: dict[int, tuple[str, torch.Tensor]] = {}

    def run(self, make: Callable[[LocalWire], Steps]) -> list[Exception | None]:
        """Runs the generator of every rank to its end. Returns the errors by rank."""
        steps = [make(LocalWire(self, rank)) for rank in range(self.size)]
        errors: list[Exception | None] = [None] * self.size
        results: list[torch.Tensor] | None = None
        while True:
            pending: list[Pending] = []
            for rank, each in enumerate(steps):
                try:
                    pending.append(next(each) if results is None else each.send(results[rank]))
                except StopIteration:
                    pass
                except Exception as error:
                    errors[rank] = error
            assert len(pending) in (0, self.size), f"{len(pending)} of {self.size} ranks go on"
            if not pending:
                return errors
            results = self._compute()

    def start(self, rank: int, kind: str, tensor: torch.Tensor) -> Pending:
        assert rank not in self._calls, "a codec waits for one collective at a time"
        self._calls[rank] = (kind, tensor)
        return lambda: tensor

    def _compute(self) -> list[torch.Tensor]:
        calls, self._calls = [self._calls[rank] for rank in range(self.size)], {}
        kinds = {(kind, tensor.shape, tensor.dtype) for kind, tensor in calls}
        assert len(kinds) == 1, f"the ranks differ: {kinds}"
        kind, tensors = calls[0][0], [tensor for _, tensor in calls]
        self.started.append(kind)
        if kind == "all_reduce":
            total = sum(tensors[1:], tensors[0].clone())
            return [tensor.copy_(total) for tensor in tensors]
        if kind == "all_gather":
            return [torch.stack(tensors) for _ in tensors]
        return [torch.stack([tensor[rank] for tensor in tensors]) for rank in range(self.size)]


class LocalWire:
    """One rank's end of a group (see `codec.Wire`)."""

    def __init__(self, group: LocalGroup, rank: int) -> None:
        self._group, self.rank, self.size = group, rank, group.size

    def all_reduce(self, values: torch.Tensor) -> Pending:
        return self._group.start(self.rank, "all_reduce", values)

    def all_gather(self, values: torch.Tensor) -> Pending:
        return self._group.start(self.rank, "all_gather", values)

    def all_to_all(self, rows: torch.Tensor) -> Pending:
        return self._group.start(self.rank, "all_to_all", rows)


def bucket(values: torch.Tensor, sizes: dict[str, int] | None = None) -> Bucket:
    """Makes a bucket of a copy of the values; without sizes, of one parameter."""
    own = sizes or {"weight": values.numel()}
    return Bucket(values.clone(), tuple(own), tuple(own.values()))


def averaged(
    codecs: Sequence[Codec], gradients: Sequence[torch.Tensor], sizes: dict[str, int] | None = None
) -> list[torch.Tensor]:
    """Returns each rank's result; codec and gradient of every rank are given."""
    group = LocalGroup(len(codecs))
    buckets = [bucket(each, sizes) for each in gradients]
    errors = group.run(lambda wire: codecs[wire.rank].steps(buckets[wire.rank], wire))
    assert errors == [None] * group.size, errors
    return [each.values for each in buckets]


def gradients(seed: int, size: int, count: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Returns values of `size` ranks, whose magnitudes vary from part to part. Some parts are zero."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.exp2(torch.randint(-20, 4, (-(-count // 100),), generator=generator).float())
    scales[torch.rand(scales.shape, generator=generator) < 0.1] = 0
    scale = scales.repeat_interleave(100)[:count]
    return [(torch.randn(count, generator=generator) * scale).to(dtype) for _ in range(size)]
