# SPDX-License-Identifier: Apache-2.0
"""Records the global modes under which a region was captured, so that a later compile runs under the same modes.

Dynamo guards on these modes, so a captured graph runs only under them. A compile between two steps must restore them:
otherwise it would trace another program (without a backward graph or without casts).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from agspeed.devices.accelerator import numerics_flags, set_numerics_flags

_AUTOCAST_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class AmbientModes:
    """A snapshot of gradient mode, inference mode, autocast, default dtype and the flags of CUDA's operators."""

    grad_enabled: bool
    inference_mode: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    default_dtype: torch.dtype
    flags: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    """Flags that change the results of CUDA operators (TF32 and the like); empty if CUDA is not in use."""

    @classmethod
    def capture(cls) -> AmbientModes:
        """Returns the modes that are in force on this thread."""
        autocast = tuple(
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in _AUTOCAST_DEVICES
        )
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast, torch.get_default_dtype()
        return cls(*modes, tuple(numerics_flags().items()))

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Runs a block under these modes and always restores the previous ones afterwards."""
        default_dtype = torch.get_default_dtype()
        with contextlib.ExitStack() as stack:
            stack.callback(torch.set_default_dtype, default_dtype)
            torch.set_default_dtype(self.default_dtype)
            if self.flags:
                stack.callback(set_numerics_flags, numerics_flags())
                set_numerics_flags(dict(self.flags))
            stack.enter_context(torch.inference_mode(self.inference_mode))
            stack.enter_context(torch.set_grad_enabled(self.grad_enabled))
            for device, enabled, dtype in self.autocast:
                if enabled or torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
            yield
