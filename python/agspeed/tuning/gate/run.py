# SPDX-License-Identifier: Apache-2.0
"""Runs a region once for the gate: forward on private inputs, then backward for given tangents. Records everything that
a program could observe.

This module does not judge: `agspeed.tuning.gate.check` compares two `Run`s. One thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from agspeed.tuning.gate.facts import Facts, facts_of
from agspeed.tuning.gate.inputs import WIDER, InputCopies, same_bits

Region = Callable[..., Sequence[Any]]
Tangents = dict[int, torch.Tensor]
"""{output index: gradient of the loss}; the loss does not use outputs that are missing here."""
GRADIENT = "the gradient of"


@dataclass
class Run:
    """Result of `execute`.

    outputs and mutated (changed inputs by index) are copies. gradients has one entry per set of tangents. raw keeps
    each returned tensor with a copy, to detect that a later call overwrites it.
    """

    facts: list[Facts]
    outputs: list[Any]
    mutated: dict[int, torch.Tensor]
    gradients: list[dict[int, torch.Tensor | None]] = field(default_factory=list)
    raw: list[tuple[str, torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def numbers(self, turn: int) -> dict[str, torch.Tensor]:
        """Returns the run's tensors by name: outputs, changed inputs, and the gradients of one set of tangents."""
        found = {f"output {i}": value for i, value in enumerate(self.outputs) if isinstance(value, torch.Tensor)}
        found |= {f"input {i} after the call": value for i, value in self.mutated.items()}
        if turn < len(self.gradients):
            gradients = self.gradients[turn].items()
            found |= {f"{GRADIENT} input {i}": value.to_dense() for i, value in gradients if value is not None}
        return found

    def overwritten(self) -> str | None:
        """Returns the name of a result whose memory has changed since the run, or None."""
        for name, now, then in self.raw:
            if not same_bits(now, then):
                return name
        return None


def execute(
    region: Region,
    copies: InputCopies,
    tangents: Sequence[Tangents] | Callable[[Sequence[object]], Sequence[Tangents]] = (),
    *,
    between: Callable[[], None] | None = None,
    modes: Sequence[contextlib.AbstractContextManager[object]] = (),
) -> Run:
    """Runs `region` forward once and backward once per set of tangents.

    Args:
        copies: consumed by this run.
        tangents: the sets, or a function that makes them from the outputs.
        between: called after the forward and before the first backward.
        modes: entered around the region and its backward, but not around the gate's own operations.
    """
    with _entered(modes):
        results = list(region(*copies.values))
    facts = [facts_of(value, index, results, copies) for index, value in enumerate(results)]
    raw = [
        (f"output {i}", v.detach(), v.detach().clone()) for i, v in enumerate(results) if isinstance(v, torch.Tensor)
    ]
    outputs = [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in results]
    run = Run(facts, outputs, copies.changed())
    if between is not None:
        between()
        run.raw = raw
    sets = tangents(results) if callable(tangents) else tangents
    for index, chosen in enumerate(sets):
        with _entered(modes):
            run.gradients.append(_gradients(results, copies, chosen, keep=index + 1 < len(sets)))
    if between is not None and run.gradients:
        found = run.gradients[0].items()
        run.raw += [(f"{GRADIENT} input {i}", value, value.clone()) for i, value in found if value is not None]
    return run


@contextlib.contextmanager
def _entered(modes: Sequence[contextlib.AbstractContextManager[object]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        yield


def make_tangents(results: Sequence[Any], seed: int) -> list[Tangents]:
    """Returns two sets of seeded tangents for a run's outputs; [] if no output is differentiable.

    The first set is random for every output. The second is constant and expanded from a single number, like the
    gradients of ``sum().backward()``. It omits every second output, like a loss that does not use them.
    """
    wanted = [i for i, value in enumerate(results) if isinstance(value, torch.Tensor) and value.requires_grad]
    if not wanted or not torch.is_grad_enabled():
        return []
    generator = torch.Generator().manual_seed(seed)
    random: Tangents = {}
    for index in wanted:
        value = results[index]
        drawn = torch.randn(value.shape, generator=generator, dtype=_drawn_type(value.dtype))
        random[index] = drawn.to(device=value.device, dtype=value.dtype)
    constant = {i: torch.tensor(0.75, dtype=results[i].dtype, device=results[i].device) for i in wanted[::2]}
    return [random, {i: number.expand(results[i].shape) for i, number in constant.items()}]


def _drawn_type(dtype: torch.dtype) -> torch.dtype:
    return torch.complex64 if dtype.is_complex else torch.float32


def promoted(tangents: Sequence[Tangents]) -> list[Tangents]:
    return [{i: value.to(WIDER.get(value.dtype, value.dtype)) for i, value in chosen.items()} for chosen in tangents]


def _gradients(
    results: Sequence[Any], copies: InputCopies, tangents: Tangents, *, keep: bool
) -> dict[int, torch.Tensor | None]:
    """Returns {input index: gradient}; an input that is passed twice appears once."""
    leaves: dict[int, torch.Tensor] = {}
    for index, leaf in enumerate(copies.leaves):
        if leaf is not None and not any(leaf is other for other in leaves.values()):
            leaves[index] = leaf
    found = torch.autograd.grad(
        [results[i] for i in tangents],
        list(leaves.values()),
        list(tangents.values()),
        retain_graph=keep,
        allow_unused=True,
    )
    return dict(zip(leaves, found, strict=True))
