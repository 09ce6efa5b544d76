# SPDX-License-Identifier: Apache-2.0
"""Reads the gradients that enter and leave one forward's part of the autograd graph during the user's own backward.

The part lies between the forward's outputs and its borders: leaves, and tensors that existed before the forward. Hooks
on its nodes read the gradients; nothing is computed twice, and the user's hooks do not run again. The gradients belong
to this forward alone, even if the backward also covers other calls, accumulated gradients and reductions between ranks.

Follows torch.autograd.graph.Node (`register_hook`, `register_prehook`). Threads: hooks run on autograd's threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from agspeed.torch_compat.autograd import at_end_of_backward, current_backward, number_of, will_run

Key = TypeVar("Key")
Place = int | str
"""An output of a forward: its position, or the name of an attribute."""
Border = tuple[Any, int]
"""A node outside the part, and the number of one of its outputs."""


class Passage:
    """One forward's part of the autograd graph. It holds the nodes.

    Args:
        outputs: the forward's outputs, by index.
        first: autograd's sequence number before the forward.
    """

    def __init__(self, outputs: Mapping[Place, torch.Tensor], first: int) -> None:
        self.outputs: dict[Place, Border] = {
            i: (out.grad_fn, out.output_nr) for i, out in outputs.items() if _is_inside(out, first)
        }
        """{index of an output that has a gradient: (its node, the number of the node's output)}."""
        self.edges: dict[Any, list[tuple[int, Border]]] = {}
        """{node inside: [(position of an edge that leads outside, its border)]}."""
        self.inner: dict[Any, list[tuple[int, Place]]] = {}
        """{node inside: [(position of an edge that leads to an output of the forward, index of the output)]}."""
        self.has_reentrant = False
        """True if a node runs a nested backward whose nodes are not part of this graph."""
        self._next: dict[Any, list[Any]] = {}
        self._walk(first)

    @property
    def borders(self) -> set[Border]:
        return {border for edges in self.edges.values() for _, border in edges}

    def _walk(self, first: int) -> None:
        of_outputs: dict[Border, Place] = {border: index for index, border in self.outputs.items()}
        waiting = [node for node, _ in self.outputs.values()]
        while waiting:
            node = waiting.pop()
            if node in self._next:
                continue
            inside = self._next[node] = []
            self.has_reentrant |= node.name() == "CheckpointFunctionBackward"
            for place, (next_node, number) in enumerate(node.next_functions):
                if next_node is None:
                    continue
                if is_leaf(next_node) or number_of(next_node) < first:
                    self.edges.setdefault(node, []).append((place, (next_node, number)))
                    continue
                if (next_node, number) in of_outputs:
                    self.inner.setdefault(node, []).append((place, of_outputs[next_node, number]))
                inside.append(next_node)
            waiting.extend(inside)

    def runs_whole(self) -> bool:
        """Returns, within a backward, whether it runs every node that the outputs' gradients reach. A backward for the
        gradients of some tensors alone does not."""
        waiting = [node for node, _ in self.outputs.values() if will_run(node)]
        if not waiting:
            return False
        seen = set()
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if not will_run(node):
                return False
            waiting.extend(self._next[node])
        return True


class Reading:
    """Reads the gradients that enter and leave a passage in the first backward that runs through all of it.

    `taken` has the gradients of outputs by index, and `given` the gradients of borders. Outputs and borders without a
    gradient are missing. `is_whole` is False if gradients may enter elsewhere than through outputs: if a node runs a
    nested backward, or if the backward builds a graph to be differentiated again (``create_graph=True``).
    """

    def __init__(self, passage: Passage, on_end: Callable[[Reading], None]) -> None:
        self.taken: dict[Place, torch.Tensor] = {}
        self.given: dict[Border, torch.Tensor] = {}
        self.is_whole = not passage.has_reentrant
        self._passage, self._on_end = passage, on_end
        self._inner: dict[Place, torch.Tensor] = {}
        self._task: int | None = None
        self._hooks = []
        by_node: dict[Any, list[tuple[Place, int]]] = {}
        for index, (node, number) in passage.outputs.items():
            by_node.setdefault(node, []).append((index, number))
        for node, indices in by_node.items():
            self._hooks.append(node.register_prehook(self._reader_of_outputs(indices)))
        for node in {**passage.edges, **passage.inner}:
            self._hooks.append(node.register_hook(self._reader_of_edges(node)))

    def close(self) -> None:
        """Removes the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _begins(self) -> bool:
        """Called when a node runs. Returns whether this backward is the one to read."""
        task = current_backward()
        self.is_whole &= not torch.is_grad_enabled()
        if self._task is None and self._passage.runs_whole():
            self._task = task
            at_end_of_backward(self._end)
        return self._task == task

    def _reader_of_outputs(self, indices: list[tuple[Place, int]]) -> Callable[..., None]:
        def read(gradients: Sequence[torch.Tensor | None]) -> None:
            if self._begins():
                for index, number in indices:
                    _add(self.taken, index, gradients[number])

        return read

    def _reader_of_edges(self, node: object) -> Callable[..., None]:
        edges, inner = self._passage.edges.get(node, ()), self._passage.inner.get(node, ())

        def read(inputs: Sequence[torch.Tensor | None], outputs: object) -> None:
            if self._begins():
                for place, border in edges:
                    _add(self.given, border, inputs[place])
                for place, index in inner:
                    _add(self._inner, index, inputs[place])

        return read

    def _end(self) -> None:
        """Called when the backward has ended."""
        self.close()
        for index, gradient in self._inner.items():
            if index in self.taken:  # subtract the gradient from the forward's other outputs: it is not from outside
                self.taken[index] = self.taken[index] - gradient
        self._on_end(self)


def is_leaf(node: object) -> bool:
    """Returns whether a node accumulates the gradient of a leaf (its attribute `variable`)."""
    return hasattr(node, "variable")


def _is_inside(output: torch.Tensor, first: int) -> bool:
    node = output.grad_fn
    return node is not None and not is_leaf(node) and number_of(node) >= first


def _add(sums: dict[Key, torch.Tensor], key: Key, gradient: torch.Tensor | None) -> None:
    if gradient is not None:
        gradient = gradient.detach()
        sums[key] = sums[key] + gradient if key in sums else gradient.clone()  # DDP and the like reduce it in place
