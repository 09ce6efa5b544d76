# SPDX-License-Identifier: Apache-2.0
"""Reproduces the side effects of activation checkpointing: a part that runs again in the backward draws the same random
numbers again and updates its buffers once more.

Random numbers: AOTAutograd's partitioner represents random operators that are recomputed by two higher-order operators.
The one in the forward also returns the generator's state. The one in the backward runs from that state and restores the
generator afterwards. `as_plain_calls` replaces both by plain operators::

    (state, y) = run_and_save_rng_state(op, x)    state = random_state(); y = op(x)
    y = run_with_rng_state(state, op, x)          before = exchange_random_state(state); y = op(x);
                                                  exchange_random_state(before)

Both state operators have side effects, so no operator that draws random numbers is moved across them.

Buffers: a captured graph updates the statistics of a batch norm once. Eager updates them a second time when the part
runs again. `repeating` performs the second update when a gradient arrives that would make the part run again. It
derives the second update from the first one::

    r1 = (1 - m) r0 + m b    =>    m b = r1 - (1 - m) r0    and the second update is    r = (1 - m) r + m b
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from agspeed.backends.base import Runner
from agspeed.devices.placement import tensors_in
from agspeed.errors import UnsupportedError
from agspeed.log import logger
from agspeed.torch_compat import operators
from agspeed.torch_compat.autograd import current_backward
from agspeed.torch_compat.graphs import outputs_of
from agspeed.torch_compat.modes import TorchDispatchMode
from agspeed.torch_compat.operators import run_and_save_rng_state, run_with_rng_state
from agspeed.torch_compat.shapes import FakeTensor, detect_fake_mode

_CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint


def as_plain_calls(graph: fx.GraphModule) -> None:
    """Replaces such operators in `graph` if they draw from the CPU's generator. Requires the native extension, which
    registers the two state operators."""
    wrappers = [node for node in graph.graph.nodes if node.target in (run_and_save_rng_state, run_with_rng_state)]
    fake_mode = detect_fake_mode([node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")])
    for node in wrappers:
        is_forward = node.target is run_and_save_rng_state
        operator, *arguments = node.args if is_forward else node.args[1:]
        assert callable(operator) and fake_mode is not None
        values = fx.map_arg((tuple(arguments), node.kwargs), lambda source: source.meta["val"])
        with fake_mode:  # the partitioner leaves some of its nodes without a meta value
            result = operator(*values[0], **values[1])
        if any(tensor.device.type != "cpu" for tensor in tensors_in(result)):
            continue
        with graph.graph.inserting_before(node):
            if is_forward:
                with fake_mode:  # the partitioner's own example has a symbolic size
                    state = torch.empty(torch.get_rng_state().shape, dtype=torch.uint8)
                _in_forward(node, operator, arguments, (state, result))
            else:
                _in_backward(node, operator, arguments, result)
        graph.graph.erase_node(node)


def _in_forward(node: fx.Node, operator: Any, arguments: Sequence[Any], values: tuple[Any, Any]) -> None:
    state = node.graph.call_function(torch.ops.agspeed.random_state.default)
    call = node.graph.call_function(operator, tuple(arguments), dict(node.kwargs))
    state.meta["val"], call.meta["val"] = values
    for part in list(node.users):  # each user takes one of the two results
        part.replace_all_uses_with(call if part.args[1] == 1 else state)
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
    """Buffers that checkpointed parts of a graph update, by their positions among the graph's inputs."""

    outputs: tuple[int, ...]
    """The graph's outputs whose gradients make eager run the parts again."""
    averages: dict[int, float] = field(default_factory=dict)
    """{moving average: the fraction of the old value that an update keeps}."""
    counters: dict[int, float] = field(default_factory=dict)
    """{counter: the number that an update adds}."""


def repetitions(graph: fx.GraphModule) -> list[Repetition]:
    """Returns the updates in checkpointed parts of a graph captured by Dynamo.

    Raises: UnsupportedError if eager's second run of a part has other side effects. Supported are only updates of norm
    statistics that nothing else reads or changes."""
    found: dict[tuple[int, ...], Repetition] = {}
    number = {node: index for index, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
    for call in graph.graph.find_nodes(op="call_function", target=_CHECKPOINT):
        if not _needs_gradient(call):
            continue  # eager never runs it again
        body = getattr(graph, call.args[0].target)
        parameters = body.graph.find_nodes(op="placeholder")
        updates = _updates(body)
        changed, draws = _effects(body)
        if draws and call.kwargs.get("preserve_rng_state") is False:
            raise UnsupportedError("a checkpointed part draws other random numbers when it runs again in the backward")
        if changed - {update.buffer for update in updates}:
            raise UnsupportedError(_TWICE.format("a checkpointed part"))
        if not updates:
            continue
        if body.meta.get("_checkpoint_context_fn") is not None:
            raise UnsupportedError(_TWICE.format("a selectively checkpointed part"))
        outer = dict(zip(parameters, call.args[1:], strict=True))
        outputs = _outputs_of(call)
        part = found.setdefault(outputs, Repetition(outputs))
        for update in updates:
            given = outer[update.buffer]
            if given not in number or len(given.users) > 1 or len(update.buffer.users) > 1:
                raise UnsupportedError(
                    f"{update.buffer.name}, which a checkpointed part changes in place and eager again in the "
                    "backward, is used elsewhere, too"
                )
            if update.kept is not None:
                part.averages[number[given]] = update.kept
            else:
                part.counters[number[given]] = update.added
    return [part for part in found.values() if part.outputs]


_TWICE = "{} changes a buffer in place, which eager does again in the backward"


def repeating(target: Runner, parts: Sequence[Repetition]) -> Runner:
    """Returns `target`, which runs the graph, with the second updates added. Any thread; the backward may run on
    another one."""

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
        # `.data`: like batch norm, change the memory without autograd's knowledge.
        self._averages = [args[index].data for index in part.averages]
        self._kept = list(part.averages.values())
        self._counters = [args[index].data for index in part.counters]
        self._added = list(part.counters.values())
        self._terms = operators.multiplied(self._averages, self._kept) if self._averages else ()
        self._backward = -1  # autograd's number of the latest backward with a second update

    def await_gradients(self, outputs: Sequence[Any]) -> None:
        """Computes the second update and registers it for gradients of `outputs`. Call it after the first update."""
        if self._averages:
            self._terms = operators.differences(self._averages, self._terms)
        for output in outputs:
            if isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(self._apply)

    def _apply(self, gradient: torch.Tensor | None) -> None:
        """Applies the second update, once per backward. Called for each output; gradient: None if only another output
        of the same node has one."""
        backward = current_backward()
        if gradient is None or backward == self._backward:
            return
        self._backward = backward
        with torch.no_grad():
            if self._averages:
                operators.multiply(self._averages, self._kept)
                operators.add(self._averages, self._terms)
            if self._counters:
                operators.add(self._counters, self._added)


@dataclass(frozen=True)
class _Known:
    """An update of a checkpointed part's buffer that a second run performs in the same way."""

    buffer: fx.Node
    kept: float | None = None
    added: float = 0


def _updates(body: fx.GraphModule) -> list[_Known]:
    """Returns the updates by norms whose gradients make eager run them again, and by the counters before them."""
    counters: list[_Known] = []
    found: list[_Known] = []
    for node in body.graph.nodes:
        if node.op == "call_method" and node.target == "add_" and len(node.args) == 2 and not node.kwargs:
            buffer, added = node.args
            if _is_parameter(buffer) and isinstance(added, (int, float)):
                counters.append(_Known(buffer, added=added))
        if node.target not in (functional.batch_norm, functional.instance_norm) or not _needs_gradient(node):
            continue
        given = inspect.signature(node.target).bind(*node.args, **node.kwargs)
        given.apply_defaults()
        momentum = given.arguments["momentum"]
        if given.arguments.get("training", given.arguments.get("use_input_stats")) is False:
            continue
        buffers = [given.arguments[name] for name in ("running_mean", "running_var")]
        if isinstance(momentum, (int, float)) and all(map(_is_parameter, buffers)):
            found += [*counters, *(_Known(buffer, kept=1 - momentum) for buffer in buffers)]
            counters.clear()
    return found


def _effects(body: fx.GraphModule) -> tuple[set[fx.Node], bool]:
    """Returns which inputs a part changes in place, and whether it draws random numbers, according to a run on fake
    tensors. If that run fails, returns the changes that the nodes' names show, and True for random numbers."""
    parameters = body.graph.find_nodes(op="placeholder")
    examples = [node.meta.get("example_value") for node in parameters]
    fakes = [value for value in examples if isinstance(value, FakeTensor)]
    changed = {buffer for node in body.graph.nodes for buffer in _named_changes(node) if _is_parameter(buffer)}
    if not fakes:
        return changed, True
    drawn = _Drawn()  # type: ignore[no-untyped-call]
    try:
        with fakes[0].fake_mode, torch.no_grad(), drawn:  # Dynamo's own fake mode, not the backend's
            copies = [torch.empty_like(value) if isinstance(value, torch.Tensor) else value for value in examples]
            before = [getattr(copy, "_version", 0) for copy in copies]
            fx.Interpreter(body).run(*copies)
    except Exception:
        logger.debug("a checkpointed part cannot be run without numbers", exc_info=True)
        return changed, True
    after = [getattr(copy, "_version", 0) for copy in copies]
    return changed | {node for node, old, new in zip(parameters, before, after, strict=True) if new > old}, drawn.any


class _Drawn(TorchDispatchMode):
    """Records whether any operator draws random numbers."""

    any = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.any |= torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        return func(*args, **(kwargs or {}))


def _named_changes(node: fx.Node) -> Sequence[Any]:
    """Returns the inputs that a node changes in place according to its name or, for norms, its arguments."""
    if _writes(node) and node.args:
        return node.args[0] if isinstance(node.args[0], (list, tuple)) else node.args[:1]
    is_norm = node.target in (functional.batch_norm, functional.instance_norm, torch.batch_norm, torch.instance_norm)
    if not is_norm:
        return ()
    is_functional = node.target in (functional.batch_norm, functional.instance_norm)
    is_training = node.args[5] if len(node.args) > 5 else node.kwargs.get("training", True)
    if is_training is False:
        return ()
    at = 1 if is_functional else 3
    return [*node.args[at : at + 2], node.kwargs.get("running_mean"), node.kwargs.get("running_var")]


def _is_parameter(value: Any) -> bool:
    return isinstance(value, fx.Node) and value.op == "placeholder"


def _needs_gradient(node: fx.Node) -> bool:
    return any(tensor.requires_grad for tensor in tensors_in(node.meta.get("example_value")))


def _outputs_of(call: fx.Node) -> tuple[int, ...]:
    """Returns the outputs of the graph whose gradients reach `call`. Raises: UnsupportedError if a result is written
    into another tensor, because views of that tensor may be outputs."""
    reached = {call}
    for node in call.graph.nodes:
        if reached.isdisjoint(node.all_input_nodes):
            continue
        if _writes(node) and not reached.isdisjoint(node.all_input_nodes[1:]):
            raise UnsupportedError(_TWICE.format("a checkpointed part whose result is written into another tensor"))
        if node.op == "output" or _needs_gradient(node):
            reached.add(node)
    return tuple(index for index, output in enumerate(outputs_of(call.graph)) if output in reached)


def _writes(node: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    is_in_place = name.endswith("_") and not name.endswith("__")
    return is_in_place or name in ("setitem", "iadd", "isub", "imul", "itruediv") or "out" in node.kwargs
