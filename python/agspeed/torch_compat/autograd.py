# SPDX-License-Identifier: Apache-2.0
"""Questions to autograd's engine about the backward that runs on this thread.

Without this part checkpointed parts, checks of candidates and meetings of ranks do not know where they are: everything
runs eagerly. All of it is there since torch 2.11.
"""

from __future__ import annotations

from typing import Any

import torch

from agspeed.torch_compat.part import Part

PART = Part(
    "autograd",
    __name__,
    needs=(
        "torch._C._autograd._top_saved_tensors_default_hooks",
        "torch._C._current_graph_task_id",
        "torch._C._will_engine_execute_node",
    ),
)


def current_backward() -> int:
    """The number of the backward that this thread is within; -1 within none."""
    return torch._C._current_graph_task_id()


def will_run(node: Any) -> bool:
    """Whether the backward under way reaches a node."""
    return bool(torch._C._will_engine_execute_node(node))


def has_saved_tensor_hooks() -> bool:
    """Whether saved-tensor hooks are in force on this thread, as under checkpointing."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
