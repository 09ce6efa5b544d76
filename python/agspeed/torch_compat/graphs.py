# SPDX-License-Identifier: Apache-2.0
"""Private attributes that FX and Dynamo keep on graphs and nodes.

Without this part, a captured graph cannot be sent to another process or named in a traceback, so everything runs
eagerly. All needs exist since torch 2.11. Stateless; any thread.
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


def outputs_of(graph: fx.Graph) -> tuple[Any, ...]:
    """The outputs of a graph: nodes, and constants."""
    outputs: Any = graph.output_node().args[0]
    return tuple(outputs)


def source_of(node: fx.Node) -> Any:
    """The source of a graph's input, as Dynamo recorded it; None if it did not, and in graphs of other tools."""
    return getattr(node, "_dynamo_source", None)


def has_source(node: fx.Node) -> bool:
    """Whether Dynamo has recorded the source of an input."""
    return hasattr(node, "_dynamo_source")


def set_source(node: fx.Node, source: Any) -> None:
    """Records the source of an input as Dynamo would. AOTAutograd reads it."""
    node._dynamo_source = source


def note_parameters(gm: fx.GraphModule, names: Iterable[str]) -> None:
    """Marks attributes as parameters in the way Dynamo marks them on its modules. AOTAutograd reads the marks."""
    from torch._dynamo.source import ConstantSource

    gm._param_name_to_source = {name: ConstantSource(name) for name in names}  # type: ignore[assignment]


def grad_switches(gm: fx.GraphModule) -> list[fx.Node]:
    """The nodes at which a graph of Dynamo switches gradients on or off, in order. A node's argument says which."""
    import torch

    return gm.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled)


def rename(node: fx.Node, name: str) -> None:
    """Gives a node any name, even one that FX would not choose."""
    node._rename(name)


def node_index(gm: fx.GraphModule, line: int) -> int | None:
    """The index of the node that produced a line of the module's generated code, or None."""
    index: int | None = gm._lineno_map.get(line - gm._prologue_start)
    return index
