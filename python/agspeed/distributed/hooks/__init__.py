# SPDX-License-Identifier: Apache-2.0
"""Sends the gradients of a `DistributedDataParallel` in fewer bytes. Training changes by that, so nothing is on unless
a script asks for it.

    model = torch.nn.parallel.DistributedDataParallel(model)
    codec = agspeed.distributed.hooks.topk(model, density=0.01)

All ranks make the same call, after the wrap and before the first backward. If their codecs differ, all of them raise a
`UserError` in the first backward. Each function returns the codec. Codecs can be pickled, and have `state_dict()` and
`load_state_dict()` for checkpoints. The state belongs to one rank, so each rank saves its own. Any backend of
`torch.distributed` works.
"""

# No annotations from __future__: DistributedDataParallel compares the ones of a hook.
from typing import TypeVar

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from agspeed.distributed.codecs import in_use
from agspeed.distributed.codecs.auto import Auto
from agspeed.distributed.codecs.cast import BFloat16, Float16
from agspeed.distributed.codecs.codec import Codec
from agspeed.distributed.codecs.int8 import Int8
from agspeed.distributed.codecs.pipeline import Pipeline
from agspeed.distributed.codecs.powersgd import PowerSGD
from agspeed.distributed.codecs.topk import TopK
from agspeed.errors import UserError, UserTypeError
from agspeed.torch_compat import ddp

__all__ = ["auto", "bf16", "fp16", "int8", "powersgd", "topk"]

_AnyCodec = TypeVar("_AnyCodec", bound=Codec)


def auto(model: DistributedDataParallel, max_error: float = 0.05, dense_below: int = 4096) -> Auto:
    """Sends each bucket as bfloat16 or bytes if that makes training steps at least 3 % shorter, else densely.

    The first 40 steps measure: the network, the codecs, and whole steps with and without them. All ranks choose alike.
    Every 2,000 steps the measurement begins again. `codec.report()`, `agspeed.status` and `agspeed.report` show the
    choices, the predictions, the errors and the bytes saved.

    Args:
        max_error: the largest norm of a codec's error, relative to the norm of the gradients. Bfloat16 has about 0.002,
            and bytes have about 0.01.
        dense_below: buckets with fewer values are sent densely.

    Raises: UserError for values out of range.
    """
    return _register(model, Auto(max_error, dense_below))


def fp16(model: DistributedDataParallel) -> Float16:
    """Sends gradients as float16: half of the bytes. Averages beyond 65504 become infinite."""
    return _register(model, Float16())


def bf16(model: DistributedDataParallel) -> BFloat16:
    """Sends gradients as bfloat16: half of the bytes, and the range of float32."""
    return _register(model, BFloat16())


def int8(model: DistributedDataParallel, dense_below: int = 4096) -> Int8:
    """Sends gradients as bytes, with a scale for each 256 values: a quarter of the bytes.

    A bucket with NaN or infinity at any rank is sent densely. dense_below: so are buckets with fewer values.
    """
    return _register(model, Int8(dense_below))


def topk(
    model: DistributedDataParallel,
    density: float = 0.01,
    momentum: float = 0.0,
    warmup_steps: int = 0,
    dense_below: int = 4096,
) -> TopK:
    """Sends the largest values of each bucket, and adds the others to the next step's (error feedback).

    A bucket with NaN or infinity at any rank is sent densely, and changes no residual.

    Args:
        density: the part of the values that a step sends.
        momentum: of the momentum correction, for densities of 1 % and less. It replaces the optimizer's momentum; 0:
            none.
        warmup_steps: the density falls from 1 to `density` in that many steps.
        dense_below: buckets with fewer values are sent densely.

    Raises: UserError for values out of range.
    """
    return _register(model, TopK(density, momentum, warmup_steps, dense_below))


def powersgd(model: DistributedDataParallel, rank: int = 1, start_step: int = 1000) -> PowerSGD:
    """Sends matrices as products of two narrow ones, by torch's PowerSGD hook.

    Args:
        rank: the number of columns of the narrow matrices.
        start_step: gradients are sent densely until then.

    Raises: UserError for values out of range.
    """
    return _register(model, PowerSGD(rank, start_step))


def _register(model: DistributedDataParallel, codec: _AnyCodec) -> _AnyCodec:
    if not isinstance(model, DistributedDataParallel):
        raise UserTypeError(
            f"{codec.name} needs a DistributedDataParallel, and got {type(model).__name__}: wrap the model first."
        )
    if ddp.hooks_of(model):
        raise UserError(
            f"{codec.name} cannot be set, because the model has a communication hook already, and "
            "DistributedDataParallel takes one only: wrap the module again, and set the codec first."
        )
    names = {parameter: name for name, parameter in model.module.named_parameters()}
    model.register_comm_hook(Pipeline(codec, names, model.process_group), _reduce)
    in_use.note(model.module, codec)
    return codec


def _reduce(
    state: Pipeline,
    bucket: distributed.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = state.reduce(bucket)
    return future
