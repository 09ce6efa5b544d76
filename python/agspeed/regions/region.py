# SPDX-License-Identifier: Apache-2.0
"""Region: one captured graph, the runners for it that exist so far, and a switch between them.

Dynamo's generated code calls the region's dispatcher (in C++ if the native extension is loaded). Selecting a candidate
swaps the dispatcher's target. A backward pass in flight belongs to its own autograd node and is not affected, so a
switch is safe at any time. A runner that raises at run time is dropped permanently: the region runs eagerly from then
on, with one warning. The failed run is repeated eagerly with the same random numbers, unless it may have begun to
change its inputs.
"""

from __future__ import annotations

import copy
import hashlib
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from agspeed import native
from agspeed.backends.ambient import AmbientModes
from agspeed.backends.base import Runner
from agspeed.backends.checkpointing import Repetition, repeating
from agspeed.backends.joint import fake_inputs
from agspeed.devices.failures import is_from_signal_handler, is_sticky
from agspeed.errors import AgspeedError
from agspeed.log import warn_once
from agspeed.regions.effects import Before, Effects, observe
from agspeed.regions.kept_warnings import kept_warnings, warning_first, without_warnings
from agspeed.regions.outcome import Outcome
from agspeed.regions.plan import EAGER, GRAPH_EAGER
from agspeed.regions.proof import Proof
from agspeed.regions.run_beside import RunBeside
from agspeed.regions.sizes import other_sizes
from agspeed.regions.user_lines import graph_location, showing_user_lines
from agspeed.torch_compat.checkpoint import with_plain_parts
from agspeed.torch_compat.graphs import outputs_of
from agspeed.torch_compat.modes import _StopRecomputationError as StopRecomputation
from agspeed.torch_compat.modes import hidden_function_modes
from agspeed.torch_compat.shapes import FakeTensor, forget_originals, mode_of

if TYPE_CHECKING:
    from agspeed._native import Dispatcher


class PythonDispatcher:
    """Replaces the native dispatcher if the extension is missing."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self._target = target

    def set_target(self, target: Callable[..., Any]) -> None:
        self._target = target

    def __call__(self, *args: Any) -> Any:
        with hidden_function_modes():
            return self._target(*args)


@dataclass(eq=False)
class Region:
    """One captured graph and its runners. Created inside Dynamo's tracing context and used by one session."""

    index: int
    gm: fx.GraphModule
    on_call: Callable[[Region, Sequence[Any]], None]
    """Called at each call while the region is observed (without a decision or an outcome), but not in steady state."""
    on_failure: Callable[[Region, str, BaseException], None]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    unfinished: dict[str, Generator[None, None, Outcome]] = field(default_factory=dict)
    """{candidate: the rest of its compile}."""
    sample: list[Any] | None = None
    selected: str = GRAPH_EAGER
    proofs: dict[str, Proof] = field(default_factory=dict)
    """{candidate: the compile child's proof for its code}."""
    code_digests: dict[str, str] = field(default_factory=dict)
    """{code digest: the candidate that first generated this code}."""
    part: str | None = None
    """The name of the sharded unit from which the graph was captured. Its parameters have memory only while the unit
    runs. None: the graph belongs to the whole target, with permanent parameters."""
    repeated: Sequence[Repetition] = ()
    """Changes that eager repeats in the backward and a graph does not."""
    twin: Region | None = None
    """An earlier region with the same graph, of another unit. Its copied inputs serve this region, too."""

    def __post_init__(self) -> None:
        self.gm, self._lifted = lift_tensors(with_plain_parts(self.gm))
        self.gm, self._detached = without_detached(self.gm)
        self.where = graph_location(self.gm)
        self._warnings = kept_warnings(self.gm)
        self.modes = AmbientModes.capture()
        self.example_inputs = fake_inputs(self.gm)
        self.other_sizes = other_sizes(self.example_inputs)
        self.num_operators = sum(node.op in ("call_function", "call_method") for node in self.gm.graph.nodes)
        self.key = self._content_key()
        self._is_observed = False
        self._effects: Effects | None = None
        self._eager: Runner = showing_user_lines(self.gm)
        self._target: Runner = _not_selected
        self._is_shadowed = False
        extension = native.load()
        make = extension.Dispatcher if extension is not None else PythonDispatcher
        self.dispatcher: Dispatcher | PythonDispatcher = make(_not_selected)
        self._point_to(self._observe)

    def select(self, name: str, *, observed: bool = False) -> str:
        """Runs `name` from the next call on, or graph-eager if `name` is not usable. Returns the selected name.

        Args:
            observed: report calls to `on_call` (while tuning), at the cost of a Python call. A region without an
                outcome for `name` is observed in any case.
        """
        outcome = self.outcomes.get(name)
        runner = outcome.runner if outcome is not None and outcome.usable else None
        self.selected = name if runner is not None else GRAPH_EAGER
        target = self._eager  # eager's functions issue their own warnings
        if runner is not None:
            self._watch(name, runner)
            target = self._protected(name, runner)
            target = warning_first(target, self._warnings) if self._warnings else target
        self._is_observed = observed
        if observed or (outcome is None and name != EAGER):
            target = self._observing(target)
        self._point_to(target)
        return self.selected

    def shadow(self, run_beside: RunBeside | None) -> None:
        """Runs the graph operator by operator from the next call on, on the inputs that `run_beside` makes from the
        real ones. Nothing is repeated in a backward then. None: the selected runner runs again. Other threads always
        run the selected runner."""
        self._is_shadowed = run_beside is not None
        if run_beside is None:
            self.dispatcher.set_target(self._target)
            return
        lifted, thread = self._lifted, threading.get_ident()

        def run(*args: Any) -> Sequence[Any]:
            if threading.get_ident() != thread:
                return self._target(*args)
            args = (*args, *lifted)
            given = run_beside.begin(args, self._effects.mutated_inputs if self._effects is not None else None)
            self._note_call(args)
            with without_warnings(self._warnings):  # the user's module has already issued them
                outputs = self._run_observed(self._eager, args, given)
            if self._effects is not None:
                run_beside.end(args, given, self._effects.mutated_inputs)
            return outputs

        self.dispatcher.set_target(self._with_detached(run))

    def release_sample(self) -> None:
        """Drops the inputs kept for the gate, and unfinished compiles that would be checked with them."""
        self.sample = None
        self.unfinished.clear()

    @property
    def is_in_use(self) -> bool:
        """Whether other code than this object, such as Dynamo's, holds the dispatcher and may call the region."""
        return sys.getrefcount(self.dispatcher) > 2  # this region's reference, and the argument

    def forget_originals(self) -> None:
        """Releases the real tensors behind the fake example inputs."""
        if (mode := mode_of(self.example_inputs)) is not None:
            forget_originals(mode)

    def close(self) -> None:
        """Releases the target, which may refer to the region. The region must not be called again."""
        self._target = _not_selected
        self.dispatcher.set_target(_not_selected)

    def _point_to(self, target: Runner) -> None:
        """Sends calls to `target`, with the lifted tensors after Dynamo's own arguments."""
        lifted = self._lifted
        if self.repeated:
            target = repeating(target, self.repeated)
        target = self._with_detached(target)
        self._target = (lambda *args: target(*args, *lifted)) if lifted else target
        if not self._is_shadowed:
            self.dispatcher.set_target(self._target)

    def _with_detached(self, target: Runner) -> Runner:
        """Returns `target` with the detached outputs inserted that `without_detached` removed."""
        detached = self._detached
        if not detached:
            return target

        def run(*args: Any) -> Sequence[Any]:
            kept = target(*args)
            outputs = list(kept)
            for place, source in detached:
                outputs.insert(place, kept[source].detach())
            return tuple(outputs)

        return run

    def _observe(self, *args: Any) -> Sequence[Any]:
        return self._observing(self._eager)(*args)

    def _observing(self, target: Runner) -> Runner:
        def observed(*args: Any) -> Sequence[Any]:
            self._note_call(args)
            return self._run_observed(target, args, args)

        return observed

    def _note_call(self, args: Sequence[Any]) -> None:
        if self.sample is None and not any(isinstance(arg, FakeTensor) for arg in args):
            self._take_sample(args)
        self.on_call(self, args)

    def _run_observed(self, target: Runner, args: Sequence[Any], given: Sequence[Any]) -> Sequence[Any]:
        """Runs `target` on `given`: `args` themselves, or replacements for them."""
        if self._effects is not None or target is not self._eager:
            return target(*given)
        outputs, self._effects = observe(target, given, self.sample)
        return outputs

    def _take_sample(self, args: Sequence[Any]) -> None:
        twin = self.twin
        if twin is not None and twin.sample is not None and twin._effects is not None:
            self.sample, self._effects = twin.sample, twin._effects
        else:
            self.sample = _copied(args, with_parameters=self.part is not None)

    def _protected(self, name: str, runner: Runner) -> Runner:
        direct: Runner | None = getattr(runner, "direct", None)
        if direct is not None:  # native code that falls back by itself and needs no Python wrapper
            return direct

        effects = self._effects or Effects()

        def run(*args: Any) -> Sequence[Any]:
            before = effects.before(args) if effects.any else None
            try:
                return runner(*args)
            except StopRecomputation:
                raise  # torch.utils.checkpoint ends a recomputation early with this exception
            except Exception as error:
                if is_from_signal_handler(error):
                    raise
                return self._run_instead(name, args, error, effects, before)

        return run

    def _watch(self, name: str, runner: Runner) -> None:
        """Drops `name` if its runner reports a failure without raising."""
        watch = getattr(runner, "watch", None)
        if watch is None:
            return
        region = weakref.ref(self)

        def drop(error: Exception) -> None:
            alive = region()
            if alive is None:
                return
            if alive.outcomes[name].usable:
                alive._drop(name, error)
            if is_sticky(error):
                raise alive._lost_gpu(name, error) from error

        watch(drop)

    def _run_instead(
        self, name: str, args: Sequence[Any], error: Exception, effects: Effects, before: Before | None
    ) -> Sequence[Any]:
        """Repeats a failed run of `name` eagerly. Raises: AgspeedError if its inputs may have changed, or if the device
        no longer works.
        """
        if is_sticky(error):
            self._drop(name, error)
            raise self._lost_gpu(name, error) from error
        if before is not None:
            changed = effects.first_changed_input(before, args)
            if changed is None and effects.mutated_inputs and not self.modes.grad_enabled:
                changed = effects.mutated_inputs[0]  # without a backward, graphs change inputs at any time, uncounted
            if changed is not None:
                self._drop(name, error)
                raise AgspeedError(
                    f"region {self.index} ({self.where}): {name} raised {type(error).__name__}: {error}; it may have "
                    f"changed input {changed} of the region in place already, so the step cannot be repeated eagerly. "
                    "Go on from your last checkpoint; the region runs eagerly from now on"
                ) from error
            effects.rewind(before)
        result = self._eager(*args)  # raises the user's own exception if the input is at fault
        self._drop(name, error)
        return result

    def _lost_gpu(self, name: str, error: Exception) -> AgspeedError:
        return AgspeedError(
            f"region {self.index} ({self.where}): {name} raised {error}; the GPU serves this process no more. "
            "Go on from your last checkpoint in a new process, with AGSPEED_DISABLE=1 to leave agspeed out"
        )

    def _drop(self, name: str, error: BaseException) -> None:
        outcome = self.outcomes[name]
        outcome.fail(f"raised {type(error).__name__} at run time: {error}")
        self.select(name, observed=self._is_observed)
        warn_once(
            ("runtime", self.key, name),
            f"region {self.index} ({self.where}) fell back to eager: {name} {outcome.reason} "
            "(set AGSPEED_STRICT=1 to raise)",
        )
        self.on_failure(self, name, error)

    def _content_key(self) -> str:
        bodies = [part.code for part in self.gm.modules() if isinstance(part, fx.GraphModule)]
        parts = [*bodies, str(self.modes), *map(str, self.modes.flags)]
        parts += [_describe(value) for value in self.example_inputs]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def lift_tensors(gm: fx.GraphModule) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """Returns a graph with the tensors that `gm` holds as attributes as its last inputs, and these tensors.

    Dynamo keeps an optimizer's parameters and state as attributes, and the graph changes them in place. As inputs they
    are copied for the gate, and candidates share them. Returns `gm` itself if it holds no tensors.
    """
    held = {n.target: getattr(gm, n.target, None) for n in gm.graph.find_nodes(op="get_attr") if "." not in n.target}
    lifted = {name: value for name, value in held.items() if isinstance(value, torch.Tensor)}
    if not lifted:
        return gm, []
    graph = copy.deepcopy(gm.graph)
    body = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(body):
        inputs = {name: graph.placeholder(f"lifted_{index}") for index, name in enumerate(lifted)}
    for node in graph.find_nodes(op="get_attr"):
        if node.target in inputs:
            inputs[node.target].meta = node.meta
            node.replace_all_uses_with(inputs[node.target])
            graph.erase_node(node)
    return fx.GraphModule(gm, graph), list(lifted.values())


def without_detached(gm: fx.GraphModule) -> tuple[fx.GraphModule, list[tuple[int, int]]]:
    """Removes outputs that are another output's detach, as in ``return loss, loss.detach()``: the two share memory,
    which no candidate can express.

    Returns: the graph, and for each removed output its position and the position of its source among the remaining
    outputs. Returns `gm` itself if there are no such outputs.
    """
    outputs = outputs_of(gm.graph)
    places = [place for place, value in enumerate(outputs) if _is_detached(value, outputs)]
    if not places:
        return gm, []
    kept = [value for place, value in enumerate(outputs) if place not in places]
    found = [(place, kept.index(outputs[place].args[0])) for place in places]
    graph = copy.deepcopy(gm.graph)
    results = outputs_of(graph)
    graph.output_node().args = (tuple(value for place, value in enumerate(results) if place not in places),)
    for place in places:
        if not results[place].users:
            graph.erase_node(results[place])
    return fx.GraphModule(gm, graph), found


def _is_detached(value: Any, outputs: Sequence[Any]) -> bool:
    """Returns whether an output is another output's detach."""
    is_detach = isinstance(value, fx.Node) and value.op == "call_method" and value.target == "detach"
    return is_detach and value.args[0] in outputs and value.args[0].target != "detach"


def _not_selected(*args: Any) -> Any:
    raise AssertionError("the region has no target yet")


def _copied(args: Sequence[Any], *, with_parameters: bool) -> list[Any] | None:
    """Returns copies of inputs for the gate; None if there is no memory for them."""
    try:
        return [_kept(arg) if with_parameters or not isinstance(arg, torch.nn.Parameter) else arg for arg in args]
    except RuntimeError:  # out-of-memory errors derive from it
        return None


def _kept(arg: Any) -> Any:
    """Returns a copy of an input for the gate."""
    if not isinstance(arg, torch.Tensor):
        return arg
    plain = arg.detach()
    if plain.layout is not torch.strided or plain.numel() == 0:
        kept = plain.clone()
    else:  # a copy of the whole memory span keeps all strides, even overlapping ones
        span = 1 + sum((size - 1) * stride for size, stride in zip(plain.size(), plain.stride(), strict=True))
        kept = plain.as_strided((span,), (1,)).clone().as_strided(plain.size(), plain.stride(), 0)
    if isinstance(arg, torch.nn.Parameter):
        return torch.nn.Parameter(kept, requires_grad=arg.requires_grad)
    return kept.requires_grad_(arg.requires_grad)


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {tuple(value.stride())} {value.device} {value.requires_grad}"
    return str(value)
