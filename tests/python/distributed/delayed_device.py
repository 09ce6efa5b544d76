# SPDX-License-Identifier: Apache-2.0
"""Loads the torch device "delayed" (delayed_device.cpp), an accelerator without hardware, into this process."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch

from agspeed.native_files import release

NAME = "delayed"
LIBRARY = Path(__file__).with_name("libdelayed_device_torch{}{}.so".format(*release(torch.__version__)))


def load() -> None:
    torch.ops.load_library(LIBRARY)
    module = ModuleType(NAME)
    module.is_available = lambda: True  # type: ignore[attr-defined]
    module.device_count = lambda: 1  # type: ignore[attr-defined]
    module.current_device = lambda: 0  # type: ignore[attr-defined]
    torch._register_device_module(NAME, module)


def hold() -> None:
    """Stops all streams from now on."""
    torch.ops.delayed_device.hold()


def release() -> None:
    torch.ops.delayed_device.release()
