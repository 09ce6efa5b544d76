# SPDX-License-Identifier: Apache-2.0
"""All codecs, except `auto`, which chooses among them. To add one, write a class of `Codec` in a file of its own, and
add it here. A function in `agspeed.distributed.hooks` and a class in `horovod/torch/compression.py` offer it to users.
"""

from __future__ import annotations

from agspeed.distributed.codecs.cast import BFloat16, Float16
from agspeed.distributed.codecs.codec import Codec
from agspeed.distributed.codecs.int8 import Int8
from agspeed.distributed.codecs.powersgd import PowerSGD
from agspeed.distributed.codecs.topk import TopK

__all__ = ["CODECS"]

CODECS: dict[str, type[Codec]] = {codec.name: codec for codec in (Float16, BFloat16, Int8, TopK, PowerSGD)}
