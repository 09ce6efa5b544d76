# SPDX-License-Identifier: Apache-2.0
"""Remembers which codec sends the gradients of a module, for reports. Any thread may call `codec_of`."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from agspeed.distributed.codecs.codec import Codec

__all__ = ["codec_of", "note"]

_codecs: weakref.WeakKeyDictionary[nn.Module, Codec] = weakref.WeakKeyDictionary()


def note(module: nn.Module, codec: Codec) -> None:
    """The codec sends the gradients of the module from now on."""
    _codecs[module] = codec


def codec_of(module: nn.Module | None) -> Codec | None:
    """Returns the codec of a module that a `DistributedDataParallel` wraps; None if it has none."""
    return _codecs.get(module) if module is not None else None
