# SPDX-License-Identifier: Apache-2.0
"""Region: one captured graph, the ways to run it that exist so far, and a switch between them.

Dynamo's generated code calls the region's dispatcher (C++ when the native extension is there). Selecting a candidate swaps
the dispatcher's target; a backward pass in flight belongs to its own autograd node and is not affected, so a switch is safe
at any time. A runner that raises at run time is dropped for good: the region runs eagerly from then on, with one warning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import _StopRecomputationError as StopRecomputation

from agspeed.backends.ambient import AmbientModes
from agspeed.backends.base import Runner
from agspeed.backends.joint import fake_inputs
from agspeed.frontend.capture import graph_location
from agspeed.log import warn_once
from agspeed.runtime import native
from agspeed.tuning.outcome import Outcome

GRAPH_EAGER = "graph-eager"


class PythonDispatcher:
    """Stands in for the native dispatcher where the extension is missing."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self._target = target

    def set_target(self, target: Callable[..., Any]) -> None:
        self._target = target

    def __call__(self, *args: Any) -> Any:
        return self._target(*args)


@dataclass(eq=False)
class Region:
    """See the module's text. Created inside Dynamo's tracing context, used by one session."""

    index: int
    gm: fx.GraphModule
    on_call: Callable[[Region, Sequence[Any]], None]
    """Told about each call while the region is observed (before a decision); not called in steady state."""
    on_failure: Callable[[Region, str, BaseException], None]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    sample: list[Any] | None = None
    selected: str = GRAPH_EAGER
    code_digests: dict[str, str] = field(default_factory=dict)
    """Which candidate first generated the code with that digest."""

    def __post_init__(self) -> None:
        self.where = graph_location(self.gm)
        self.modes = AmbientModes.capture()
        self.example_inputs = fake_inputs(self.gm)
        self.num_operators = sum(node.op in ("call_function", "call_method") for node in self.gm.graph.nodes)
        self.needs_backward = self.modes.grad_enabled and any(
            isinstance(value, torch.Tensor) and value.requires_grad for value in self.example_inputs
        )
        self.key = self._content_key()
        self._eager: Runner = self.gm.forward
        dispatcher = native.load()
        self.dispatcher: Any = (dispatcher.Dispatcher if dispatcher else PythonDispatcher)(self._observe)

    def select(self, name: str, *, observed: bool = False) -> str:
        """Runs `name` from the next call on, or graph-eager where it is not usable. Returns what was selected.

        Args:
            observed: keep reporting calls to `on_call` (while tuning); costs a Python call.
        """
        outcome = self.outcomes.get(name)
        runner = outcome.runner if outcome is not None and outcome.usable else None
        self.selected = name if runner is not None else GRAPH_EAGER
        target = self._protected(name, runner) if runner is not None else self._eager
        if observed or (self.sample is None and runner is None):
            target = self._observing(target)
        self.dispatcher.set_target(target)
        return self.selected

    def release_sample(self) -> None:
        """Drops the inputs kept for the gate."""
        self.sample = None

    def _observe(self, *args: Any) -> Sequence[Any]:
        return self._observing(self._eager)(*args)

    def _observing(self, target: Runner) -> Runner:
        def observed(*args: Any) -> Sequence[Any]:
            if self.sample is None and not any(_is_symbolic_or_fake(arg) for arg in args):
                self.sample = [_kept(arg) for arg in args]
            self.on_call(self, args)
            return target(*args)

        return observed

    def _protected(self, name: str, runner: Runner) -> Runner:
        direct: Runner | None = getattr(runner, "direct", None)
        if direct is not None:  # native code that falls back by itself: no Python of ours in between
            return direct

        def run(*args: Any) -> Sequence[Any]:
            try:
                return runner(*args)
            except StopRecomputation:
                raise  # torch.utils.checkpoint's way to end a recomputation early
            except Exception as error:
                result = self._eager(*args)  # raises the user's own exception if the input is at fault
                self._drop(name, error)
                return result

        return run

    def _drop(self, name: str, error: BaseException) -> None:
        outcome = self.outcomes[name]
        outcome.fail(f"raised {type(error).__name__} at run time: {error}")
        self.select(GRAPH_EAGER)
        warn_once(
            ("runtime", self.key, name),
            f"region {self.index} ({self.where}) fell back to eager: {name} {outcome.reason} "
            "(set AGSPEED_STRICT=1 to raise)",
        )
        self.on_failure(self, name, error)

    def _content_key(self) -> str:
        parts = [self.gm.code, str(self.modes)]
        parts += [_describe(value) for value in self.example_inputs]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def _kept(arg: Any) -> Any:
    """An input to gate with later: parameters by reference, everything else copied now."""
    if not isinstance(arg, torch.Tensor) or isinstance(arg, torch.nn.Parameter):
        return arg
    plain = arg.detach()
    if plain.layout is not torch.strided or plain.numel() == 0:
        copy = plain.clone()
    else:  # copying the memory span keeps any strides, overlapping ones included
        span = 1 + sum((size - 1) * stride for size, stride in zip(plain.size(), plain.stride(), strict=True))
        copy = plain.as_strided((span,), (1,)).clone().as_strided(plain.size(), plain.stride(), 0)
    return copy.requires_grad_(arg.requires_grad)


def _is_symbolic_or_fake(arg: Any) -> bool:
    return isinstance(arg, torch._subclasses.FakeTensor)


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {tuple(value.stride())} {value.device} {value.requires_grad}"
    return str(value)
