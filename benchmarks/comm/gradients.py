# SPDX-License-Identifier: Apache-2.0
"""Real gradients, and all-reduces of them for part "coded", which run on the ranks.

A char-GPT and a convolutional network make the gradients in a few steps on real data, with other batches at each rank.
"autocast" values are the same gradients, rounded to bf16 as a step under autocast does. "random" values are random
bits, which no code makes shorter.
"""

import functools
import hashlib
import itertools
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from benchmarks import workloads
from benchmarks.comm import programs

_WORKLOADS = ("char_gpt", "conv_net")
_STEPS = 6
_buffers: list[Tensor] = []


def all_reduce(num_bytes: int, count: int, values: str, dtype: str) -> dict[str, Any]:
    """Runs `count` all-reduces of averages back to back, each in a buffer of its own. See `programs.timed`."""
    source = make(num_bytes, values, dtype, dist.get_rank(), dist.get_world_size())
    while len(_buffers) < count or _buffers[0].dtype != source.dtype or _buffers[0].shape != source.shape:
        if _buffers and (_buffers[0].dtype != source.dtype or _buffers[0].shape != source.shape):
            _buffers.clear()
        _buffers.append(torch.empty_like(source))
    for buffer in _buffers[:count]:
        buffer.copy_(source)
    return programs.timed(count, lambda at: dist.all_reduce(_buffers[at], op=dist.ReduceOp.AVG))


def digest() -> str:
    """Returns a hash of the bits of the first result."""
    return hashlib.sha256(_buffers[0].view(torch.uint8).numpy().tobytes()).hexdigest()


def bytes_of_codes() -> tuple[int, int]:
    """Returns the bytes of the values that this rank has coded so far, and the bytes of their codes."""
    from agspeed import distributed

    found = distributed.counters()
    return found["bytes_before_coding"], found["bytes_after_coding"]


@functools.lru_cache(maxsize=2)
def make(num_bytes: int, values: str, dtype: str, rank: int = 0, size: int = 1) -> Tensor:
    """Returns `num_bytes` of values of one of `size` ranks, each with batches of its own."""
    type_ = getattr(torch, dtype)
    if values == "random":
        generator = torch.Generator().manual_seed(rank)
        bits = torch.randint(-(2**15), 2**15, (num_bytes // 2,), generator=generator, dtype=torch.int16)
        # Without NaN and infinity, whose averages would be NaN at all places soon.
        return torch.where(bits & 0x7F80 == 0x7F80, bits & 0x3FFF, bits).view(type_)
    own = torch.cat([_gradients(name, rank, size) for name in _WORKLOADS])
    own = (own.bfloat16() if values == "autocast" else own).to(type_)
    times = -(-num_bytes // (own.numel() * own.element_size()))
    return own.repeat(times)[: num_bytes // own.element_size()].clone()


@functools.cache
def _gradients(name: str, rank: int, size: int) -> Tensor:
    training = workloads.load(name).build()
    batches = itertools.islice(itertools.cycle(training.batches), rank, None, size)
    for batch in itertools.islice(batches, _STEPS):
        training.step(batch)
    parameters = itertools.chain.from_iterable(module.parameters() for module in training.modules.values())
    return torch.cat([each.grad.flatten() for each in parameters if each.grad is not None])
