# SPDX-License-Identifier: Apache-2.0
"""Queries to autograd's engine about the backward that runs on this thread.

Checkpointed parts, checks of candidates and rank syncs need them. Without this part, everything runs eagerly.
All needs exist since torch 2.11.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from agspeed.torch_compat.part import Part

PART = Part(
    "autograd",
    __name__,
    needs=(
        "torch._C._autograd._get_sequence_nr",
        "torch._C._autograd._unsafe_set_version_counter",
        "torch.Tensor._backward_hooks",
        "torch._C._autograd._top_saved_tensors_default_hooks",
        "torch._C._current_graph_task_id",
        "torch._C._will_engine_execute_node",
        "torch.autograd.graph.Node._sequence_nr",
        "torch.autograd.Variable._execution_engine.queue_callback",
    ),
)


def current_backward() -> int:
    """The number of the backward that runs on this thread; -1 if none does."""
    return torch._C._current_graph_task_id()


def will_run(node: Any) -> bool:
    """Whether the current backward reaches a node."""
    return bool(torch._C._will_engine_execute_node(node))


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Makes the current backward call `call` once all its nodes have run."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def sequence_number() -> int:
    """The number of the next node of autograd's graph on this thread; later nodes have larger ones."""
    return int(torch._C._autograd._get_sequence_nr())


def number_of(node: Any) -> int:
    """The sequence number of a node. A node that accumulates a leaf's gradient has the largest possible number."""
    return int(node._sequence_nr())


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Sets the number of changes in place that autograd counts for a tensor. It does not touch the tensor's values."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def has_leaf_hooks(tensor: torch.Tensor) -> bool:
    """Whether the user has hooks on the gradient of a leaf."""
    return bool(tensor._backward_hooks)


def has_saved_tensor_hooks() -> bool:
    """Whether saved-tensor hooks are active on this thread, as under checkpointing."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def start_engine() -> None:
    """Makes autograd's engine count devices now. The engine does so once, in a process's first backward.

    Tracing registers a substitute for a GPU that the machine does not have. If the engine counted devices later, the
    substitute would get a thread, and no backward could run in forked processes. On a machine with a GPU, this does
    nothing, and the user's own first backward counts the devices.
    """
    if not torch.cuda.is_available():
        with torch.enable_grad():
            torch.zeros((), requires_grad=True).backward()
