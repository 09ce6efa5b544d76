# SPDX-License-Identifier: Apache-2.0
"""Modes that see each operator, trees of tensors, and tensors that wrap others.

Without this part no candidate can be checked against eager: everything runs eagerly. All of it is there since torch
2.11. A mode belongs to the thread that enters it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agspeed.torch_compat.part import Part

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, is_traceable_wrapper_subclass
    from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten
    from torch.utils.checkpoint import _StopRecomputationError

__all__ = [
    "TorchDispatchMode",
    "_StopRecomputationError",
    "_disable_current_modes",
    "is_traceable_wrapper_subclass",
    "tree_flatten",
    "tree_leaves",
    "tree_map_only",
    "tree_unflatten",
]

PART = Part(
    "modes",
    __name__,
    exports=(
        "torch.utils._python_dispatch.TorchDispatchMode",
        "torch.utils._python_dispatch._disable_current_modes",
        "torch.utils._python_dispatch.is_traceable_wrapper_subclass",
        "torch.utils._pytree.tree_flatten",
        "torch.utils._pytree.tree_leaves",
        "torch.utils._pytree.tree_map_only",
        "torch.utils._pytree.tree_unflatten",
        "torch.utils.checkpoint._StopRecomputationError",
    ),
)
if not TYPE_CHECKING:
    __getattr__ = PART.load
