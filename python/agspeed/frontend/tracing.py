# SPDX-License-Identifier: Apache-2.0
"""Whether somebody else is reading the model."""

from __future__ import annotations

import torch
from torch.fx._symbolic_trace import is_fx_symbolic_tracing


def is_traced() -> bool:
    """True under torch.compile, torch.export, torch.fx and torch.jit.trace."""
    return torch.compiler.is_compiling() or torch._C._is_tracing() or is_fx_symbolic_tracing()  # type: ignore[no-untyped-call]
