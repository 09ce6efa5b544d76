# SPDX-License-Identifier: Apache-2.0
"""What activation checkpointing does beside saving memory: a part that runs again in the backward draws the same random
numbers again, and updates its buffers once more.

Random numbers: AOTAutograd's partitioner writes operators that are computed again with two higher-order operators. The
forward's returns the generator's state beside the result, the backward's runs from that state and puts back what it
found. `as_plain_calls` makes of them what a graph of operators can hold::

    (state, y) = run_and_save_rng_state(op, x)    state = random_state(); y = op(x)
    y = run_with_rng_state(state, op, x)          before = exchange_random_state(state); y = op(x);
                                                  exchange_random_state(before)

Both kinds of calls have effects: nothing that draws numbers is moved across them.

Buffers: a captured graph updates the statistics of a batch norm once, eager a second time when the part runs again.
`repeating` does that when a gradient arrives that makes the part run again, by what the first update said::

    r1 = (1 - m) r0 + m b    =>    m b = r1 - (1 - m) r0    and the second update is    r = (1 - m) r + m b
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.nn import functional

from agspeed.backends.base import Runner
from agspeed.devices.placement import tensors_in
from agspeed.errors import UnsupportedError

_CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint


def as_plain_calls(graph: fx.GraphModule) -> None:
    """Rewrites `graph` where such operators draw from the CPU's generator. Requires the native extension, which
    registers the two operators for the state."""
    wrappers = [node for node in graph.graph.nodes if node.target in (run_and_save_rng_state, run_with_rng_state)]
    fake_mode = torch._guards.detect_fake_mode([node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")])
    for node in wrappers:
        is_forward = node.target is run_and_save_rng_state
        operator, *arguments = node.args if is_forward else node.args[1:]
        assert callable(operator) and fake_mode is not None
        values = fx.map_arg((tuple(arguments), node.kwargs), lambda source: source.meta["val"])
        with fake_mode:  # the partitioner leaves some of its nodes without a value
            result = operator(*values[0], **values[1])
        if any(tensor.device.type != "cpu" for tensor in tensors_in(result)):
            continue
        with graph.graph.inserting_before(node):
            if is_forward:
                with fake_mode:  # the partitioner's own has a symbol for its size
                    state = torch.empty(torch.get_rng_state().shape, dtype=torch.uint8)
                _in_forward(node, operator, arguments, (state, result))
            else:
                _in_backward(node, operator, arguments, result)
        graph.graph.erase_node(node)


def _in_forward(node: fx.Node, operator: Any, arguments: Sequence[Any], values: tuple[Any, Any]) -> None:
    state = node.graph.call_function(torch.ops.agspeed.random_state.default)
    call = node.graph.call_function(operator, tuple(arguments), dict(node.kwargs))
    state.meta["val"], call.meta["val"] = values
    for part in list(node.users):  # each takes one of the two
        part.replace_all_uses_with((state, call)[part.args[1]])  # type: ignore[index]
        node.graph.erase_node(part)


def _in_backward(node: fx.Node, operator: Any, arguments: Sequence[Any], result: Any) -> None:
    state = node.args[0]
    assert isinstance(state, fx.Node)
    exchange = torch.ops.agspeed.exchange_random_state.default
    before = node.graph.call_function(exchange, (state,))
    call = node.graph.call_function(operator, tuple(arguments), dict(node.kwargs))
    after = node.graph.call_function(exchange, (before,))
    call.meta["val"] = result
    before.meta["val"] = after.meta["val"] = state.meta["val"]
    node.replace_all_uses_with(call)


@dataclass(frozen=True)
class Repetition:
    """Buffers that checkpointed parts of a graph update, by their numbers among the graph's inputs."""

    outputs: tuple[int, ...]
    """Of the graph: a gradient for one of them makes eager run the parts again."""
    averages: dict[int, float] = field(default_factory=dict)
    """Moving averages, with the share of the old value that an update keeps."""
    counters: dict[int, float] = field(default_factory=dict)
    """Buffers that a number is added to, and that number."""


def repetitions(graph: fx.GraphModule) -> list[Repetition]:
    """The updates in checkpointed parts of a graph captured by Dynamo. Raises UnsupportedError where a part changes
    its inputs in another way than batch norm does."""
    found: dict[tuple[int, ...], Repetition] = {}
    changed: set[int] = set()
    number = {node: index for index, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
    for call in graph.graph.find_nodes(op="call_function", target=_CHECKPOINT):
        body = getattr(graph, call.args[0].target)
        inner = dict(zip(body.graph.find_nodes(op="placeholder"), call.args[1:], strict=True))
        outputs = _outputs_of(call)
        for node in body.graph.nodes:
            if node.target is _CHECKPOINT and repetitions(body):
                raise UnsupportedError(_TWICE.format("a checkpointed part within another one"))
            for buffer, kept, added in _updates(node):
                if buffer not in inner:
                    continue
                index = number.get(inner[buffer], -1)
                if index < 0 or index in changed or (kept is None and added is None):
                    raise UnsupportedError(_TWICE.format(f"{node.name} in a checkpointed part"))
                changed.add(index)
                part = found.setdefault(outputs, Repetition(outputs))
                if kept is not None:
                    part.averages[index] = kept
                else:
                    part.counters[index] = added
    return list(found.values())


_TWICE = "{} changes a buffer in place, which eager does again in the backward"


def repeating(target: Runner, parts: Sequence[Repetition]) -> Runner:
    """`target`, a way to run the graph, with the second updates. Any thread; a backward may run on another one."""

    def run(*args: Any) -> Sequence[Any]:
        if not torch.is_grad_enabled():
            return target(*args)
        updates = [_Update(part, args) for part in parts]
        outputs = target(*args)
        for update, part in zip(updates, parts, strict=True):
            update.await_gradients([outputs[index] for index in part.outputs])
        return outputs

    return run


class _Update:
    """The second update of one step. Created before the first one."""

    def __init__(self, part: Repetition, args: Sequence[Any]) -> None:
        # The memory alone, as batch norm changes it: autograd need not know.
        self._averages = [args[index].data for index in part.averages]
        self._kept = list(part.averages.values())
        self._counters = [args[index].data for index in part.counters]
        self._added = list(part.counters.values())
        self._terms = torch._foreach_mul(self._averages, self._kept) if self._averages else ()
        self._backward = -1  # autograd's number of the backward that ran the part again last

    def await_gradients(self, outputs: Sequence[Any]) -> None:
        """Call after the first update."""
        if self._averages:
            self._terms = torch._foreach_sub(self._averages, self._terms)
        for output in outputs:
            if isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(self._apply)  # type: ignore[no-untyped-call]

    def _apply(self, gradient: torch.Tensor | None) -> None:
        """Called for each output, without a gradient where another one of its node has one."""
        backward = torch._C._current_graph_task_id()
        if gradient is None or backward == self._backward:
            return
        self._backward = backward
        with torch.no_grad():
            if self._averages:
                torch._foreach_mul_(self._averages, self._kept)
                torch._foreach_add_(self._averages, self._terms)
            if self._counters:
                torch._foreach_add_(self._counters, self._added)


def _updates(node: fx.Node) -> list[tuple[Any, float | None, Any]]:
    """What a node of a checkpointed part changes in place: tensor, share of the old value kept, number added; without
    both where it is another kind of change."""
    if node.op == "call_method":
        name = str(node.target)
        if not name.endswith("_") or name.endswith("__"):
            return []
        added = node.args[1] if name == "add_" and len(node.args) == 2 and not node.kwargs else None
        return [(node.args[0], None, added if isinstance(added, (int, float)) else None)]
    if node.target not in (functional.batch_norm, functional.instance_norm):
        return []
    given = inspect.signature(node.target).bind(*node.args, **node.kwargs)
    given.apply_defaults()
    if given.arguments.get("training", given.arguments.get("use_input_stats")) is False:
        return []
    momentum = given.arguments["momentum"]
    kept = 1 - momentum if isinstance(momentum, float) else None
    return [(given.arguments[name], kept, None) for name in ("running_mean", "running_var")]


def _outputs_of(node: fx.Node) -> tuple[int, ...]:
    """The outputs of the graph that depend on `node`."""
    dependent = {node}
    for other in node.graph.nodes:
        if not dependent.isdisjoint(other.all_input_nodes):
            dependent.add(other)
    (outputs,) = node.graph.output_node().args
    return tuple(index for index, output in enumerate(outputs) if output in dependent)  # type: ignore[arg-type]
