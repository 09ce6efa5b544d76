# SPDX-License-Identifier: Apache-2.0
"""Runs of the module and of its captured graphs: the state that each leaves, and the differences between two runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge

from agspeed.devices.random_state import RandomState, devices_of
from agspeed.errors import UnsupportedError
from agspeed.frontend.shadow import compare
from agspeed.frontend.shadow.aliases import Aliases, Key
from agspeed.frontend.shadow.compare import Difference
from agspeed.frontend.shadow.gradients import Border, Passage, Place, is_leaf
from agspeed.frontend.shadow.memory import Changes, Memory
from agspeed.frontend.shadow.python_state import PythonState
from agspeed.torch_compat.modules import has_backward_hooks


class Before:
    """The state before the real run."""

    def __init__(self, module: nn.Module, args: Any, kwargs: Any, roots: Sequence[object]) -> None:
        if any(map(has_backward_hooks, module.modules())):
            raise UnsupportedError("a full backward hook would run twice")
        self._module, self._roots = module, roots
        self.python = PythonState(module, args, kwargs, roots)
        self.memory = Memory(itertools.chain(self.python.tensors(), module.named_parameters()))
        self._devices = devices_of(self.memory)
        self._random = RandomState(self._devices)

    def __contains__(self, value: object) -> bool:
        return value in self.python

    def restore(self, real: Run) -> None:
        self.python.restore()
        self.memory.write({}, real.versions)
        self._random.restore()

    def ended(self, aliases: Aliases, output: object, args: Any, kwargs: Any) -> Run:
        """Returns a run that has just ended, with the state that it left."""
        python = PythonState(self._module, args, kwargs, self._roots)
        memory = self.memory
        return Run(
            aliases, output, python, memory.changes(), memory.versions(), self._devices, RandomState(self._devices)
        )


@dataclass
class Run:
    """A forward that has ended: its output and the state that it left."""

    aliases: Aliases
    """The stand-ins for inputs. For a run of the module itself they only mark where its autograd graph begins."""
    output: Any
    python: PythonState
    changes: Changes
    versions: dict[int, int]
    devices: list[torch.device]
    random: RandomState

    def restore(self, memory: Memory) -> None:
        self.python.restore()
        memory.write(self.changes, self.versions)
        self.random.restore()

    def outputs(self) -> dict[Place, torch.Tensor]:
        """Returns the tensors that require grad: outputs by position, attributes by name."""
        named: list[tuple[Place, object]] = [*enumerate(compare.leaves_of(self.output)), *self.python.tensors()]
        return {place: leaf for place, leaf in named if isinstance(leaf, torch.Tensor) and leaf.requires_grad}


def key_of(border: Border, aliases: Aliases) -> Key:
    node, _ = border
    return aliases.key(node.variable) if is_leaf(node) else border


def gradients(run: Run, taken: Mapping[Place, torch.Tensor]) -> dict[Key, torch.Tensor]:
    """Returns the gradients that leave a run's part of the autograd graph if its outputs get the gradients `taken`."""
    outputs = run.outputs()
    borders = list(Passage(outputs, run.aliases.first).borders)
    inputs = [node.variable if is_leaf(node) else GradientEdge(node, number) for node, number in borders]
    indices = [index for index in taken if index in outputs and outputs[index].grad_fn is not None]
    if not inputs or not indices:
        return {}
    tensors, gradients = [outputs[index] for index in indices], [taken[index] for index in indices]
    found = torch.autograd.grad(tensors, inputs, gradients, allow_unused=True)
    return {
        key_of(border, run.aliases): gradient.detach()
        for border, gradient in zip(borders, found, strict=True)
        if gradient is not None
    }


def between(own: dict[Key, torch.Tensor], other: dict[Key, torch.Tensor], names: dict[Key, str]) -> list[Difference]:
    found = []
    for key in {**names, **own, **other}:
        name = f"the gradient of {names.get(key, 'an input')}"
        found += compare.of_tensors(name, own.get(key), other.get(key))
    return found


def differences(memory: Memory, own: Run, other: Run) -> list[Difference]:
    """Returns the differences between the forwards of two runs."""
    found = compare.of_outputs(own.output, other.output)
    for identity in {**own.changes, **other.changes}:
        name = memory.name(identity)
        if (identity in own.changes) != (identity in other.changes):
            found.append(Difference(name, "is changed by one of them alone"))
        else:
            found += compare.of_tensors(name, own.changes[identity], other.changes[identity])
    for name, value, others in own.python.replaced_tensors(other.python):
        found += compare.of_tensors(name, value, others)
    if (attribute := own.python.difference(other.python)) is not None:
        found.append(Difference(*attribute))
    if own.random != other.random:
        found.append(Difference("the random generator", "is in another state afterwards"))
    return found
