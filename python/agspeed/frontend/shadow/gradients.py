# SPDX-License-Identifier: Apache-2.0
"""The gradients that one forward's part of autograd's graph takes in and gives out during the user's own backward.

The part lies between the forward's outputs and its borders: leaves, and tensors that existed before the forward. Hooks
on its nodes read what passes; nothing is computed twice and no hook of the user runs again. So what is read belongs to
this forward alone, whatever else the backward covers: other calls, accumulated gradients, reductions between ranks.

Follows torch.autograd.graph.Node (`register_hook`, `register_prehook`). Threads: hooks run on autograd's threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from agspeed.torch_compat.autograd import at_end_of_backward, current_backward, number_of, will_run

Border = tuple[Any, int]
"""A node outside, and which of its outputs."""


class Passage:
    """See the module's text. The nodes are held until `close`.

    Args:
        outputs: of the forward, by index.
        first: autograd's sequence number before the forward.
    """

    def __init__(self, outputs: Mapping[int, torch.Tensor], first: int) -> None:
        self.outputs: dict[int, Border] = {
            i: (out.grad_fn, out.output_nr) for i, out in outputs.items() if _is_inside(out, first)
        }
        """By index of an output that has a gradient: its node, and which of the node's outputs it is."""
        self.edges: dict[Any, list[tuple[int, Border]]] = {}
        """By node inside: its edges that lead outside, each with its place among the node's."""
        self.inner: dict[Any, list[tuple[int, int]]] = {}
        """By node inside: its edges that lead to outputs of the forward, each with the index of the output."""
        self.has_reentrant = False
        """A node differentiates a part of its own, out of sight."""
        self._next: dict[Any, list[Any]] = {}
        self._walk(first)

    @property
    def borders(self) -> set[Border]:
        return {border for edges in self.edges.values() for _, border in edges}

    def _walk(self, first: int) -> None:
        of_outputs: dict[Border, int] = {border: index for index, border in self.outputs.items()}
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
        """Within a backward: whether it runs everything that its gradients of outputs lead to, as one that was asked
        for the gradients of some tensors alone does not."""
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
    """Reads, in the first backward that runs through all of a passage, what it takes in and gives out.

    `taken` has the gradients of outputs by index, `given` the gradients of borders. An output or a border without a
    gradient is missing there. `is_whole` is False where gradients may enter elsewhere than through outputs: a node
    differentiates a part of its own, out of sight, or a backward makes a graph of its own, to be differentiated again.
    """

    def __init__(self, passage: Passage, on_end: Callable[[Reading], None]) -> None:
        self.taken: dict[int, torch.Tensor] = {}
        self.given: dict[Border, torch.Tensor] = {}
        self.is_whole = not passage.has_reentrant
        self._passage, self._on_end = passage, on_end
        self._inner: dict[int, torch.Tensor] = {}
        self._task: int | None = None
        self._hooks = []
        by_node: dict[Any, list[tuple[int, int]]] = {}
        for index, (node, number) in passage.outputs.items():
            by_node.setdefault(node, []).append((index, number))
        for node, indices in by_node.items():
            self._hooks.append(node.register_prehook(self._reader_of_outputs(indices)))
        for node in {**passage.edges, **passage.inner}:
            self._hooks.append(node.register_hook(self._reader_of_edges(node)))

    def close(self) -> None:
        """Reads no more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _begins(self) -> bool:
        """A node runs. Returns whether this backward is the one to read."""
        task = current_backward()
        self.is_whole &= not torch.is_grad_enabled()
        if self._task is None and self._passage.runs_whole():
            self._task = task
            at_end_of_backward(self._end)
        return self._task == task

    def _reader_of_outputs(self, indices: list[tuple[int, int]]) -> Callable[..., None]:
        def read(gradients: Sequence[torch.Tensor | None]) -> None:
            if self._begins():
                for index, number in indices:
                    _add(self.taken, index, gradients[number])

        return read

    def _reader_of_edges(self, node: Any) -> Callable[..., None]:
        edges, inner = self._passage.edges.get(node, ()), self._passage.inner.get(node, ())

        def read(inputs: Sequence[torch.Tensor | None], outputs: Any) -> None:
            if self._begins():
                for place, border in edges:
                    _add(self.given, border, inputs[place])
                for place, index in inner:
                    _add(self._inner, index, inputs[place])

        return read

    def _end(self) -> None:
        """The backward has ended."""
        self.close()
        for index, gradient in self._inner.items():
            if index in self.taken:  # what other outputs of the forward sent is no gradient from outside
                self.taken[index] = self.taken[index] - gradient
        self._on_end(self)


def is_leaf(node: Any) -> bool:
    """Whether a node accumulates the gradient of a leaf, its attribute `variable`."""
    return hasattr(node, "variable")


def _is_inside(output: torch.Tensor, first: int) -> bool:
    node = output.grad_fn
    return node is not None and not is_leaf(node) and number_of(node) >= first


def _add(sums: dict[Any, torch.Tensor], key: Any, gradient: torch.Tensor | None) -> None:
    if gradient is not None:
        gradient = gradient.detach()
        sums[key] = sums[key] + gradient if key in sums else gradient.clone()  # wrappers of ranks reduce it in place
