# SPDX-License-Identifier: Apache-2.0
"""What FX and Dynamo keep on graphs and nodes beside their public parts.

Without this part a captured graph cannot be handed to another process or named in a traceback: everything runs
eagerly. All of it is there since torch 2.11. Stateless; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from agspeed.torch_compat.part import Part

if TYPE_CHECKING:
    from torch import fx

PART = Part(
    "graphs",
    __name__,
    needs=(
        "torch._C._set_grad_enabled",
        "torch._dynamo.source.ConstantSource(source_name)",
        "torch.fx.GraphModule._lineno_map",
        "torch.fx.GraphModule._prologue_start",
        "torch.fx.Node._rename",
    ),
)


def source_of(node: fx.Node) -> Any:
    """Where Dynamo found an input of its graph; None where it has not said so, and in graphs of others."""
    return getattr(node, "_dynamo_source", None)


def has_source(node: fx.Node) -> bool:
    """Whether Dynamo has said where an input comes from."""
    return hasattr(node, "_dynamo_source")


def set_source(node: fx.Node, source: Any) -> None:
    """Says of an input what Dynamo would have said; AOTAutograd reads it."""
    node._dynamo_source = source


def note_parameters(gm: fx.GraphModule, names: Iterable[str]) -> None:
    """Attaches what Dynamo attaches to its modules: AOTAutograd reads there which attributes are parameters."""
    from torch._dynamo.source import ConstantSource

    gm._param_name_to_source = {name: ConstantSource(name) for name in names}  # type: ignore[assignment]


def grad_switches(gm: fx.GraphModule) -> list[fx.Node]:
    """Where a graph of Dynamo's switches gradients on or off, in order; the argument says which."""
    import torch

    return gm.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled)


def rename(node: fx.Node, name: str) -> None:
    """Gives a node a name that FX would not have chosen."""
    node._rename(name)


def node_index(gm: fx.GraphModule, line: int) -> int | None:
    """The number of the node that a line of the module's generated code is of, or None."""
    index: int | None = gm._lineno_map.get(line - gm._prologue_start)
    return index
