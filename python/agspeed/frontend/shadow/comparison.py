# SPDX-License-Identifier: Apache-2.0
"""Comparison: no captured graph trains before it was compared with the user's own module.

In a compared step the module itself runs, as the real step. Its captured graphs run beside it, operator by operator, on
the same inputs, random numbers and Python state, all of which is put back. Outputs, what changed in place, and
attributes are compared at once. Gradients follow with the user's own backward: the run beside gets the gradients that
the real outputs get. The gate (`tuning/gate`) proves each candidate equal to its graph, so both together prove a
candidate equal to the module.

Steps are compared before a graph's first real step, then in the 2nd, 4th, 8th, ... and every 4096th. A difference is
looked at twice more before it counts: the module may differ from itself (it reads a clock), or rounding explains it.

Threads: the session's training thread; a GPU's backward may end on one of autograd's.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge

from agspeed.devices.random_state import RandomState, devices_of
from agspeed.errors import UnsupportedError
from agspeed.frontend.shadow import compare
from agspeed.frontend.shadow.aliases import Aliases, Key, share_memory
from agspeed.frontend.shadow.compare import Difference
from agspeed.frontend.shadow.gradients import Border, Passage, Reading, is_leaf
from agspeed.frontend.shadow.memory import Memory
from agspeed.frontend.shadow.python_state import PythonState, is_followed
from agspeed.torch_compat.autograd import current_backward, has_saved_tensor_hooks
from agspeed.torch_compat.modes import tree_leaves
from agspeed.torch_compat.modules import has_backward_hooks
from agspeed.tuning.interrupted import deferred_signals

Call = Callable[..., Any]
Substitute = Callable[[Sequence[Any]], list[Any]]
"""Gives a region other inputs than those it is called with."""

_FARTHEST = 4096
"""Steps between two comparisons, at most: at the price of some steps each, a thousandth of the time."""
_MOST_ROOTS = 64
"""Objects outside of the module that a forward may change; of more it is not compared."""
_WITHOUT_BACKWARD = 3
"""Compared forwards in a row that no backward follows, after which outputs alone have to do."""
_NOISE = 2.0
"""In units of the last place."""


class EndedEarly(BaseException):
    """Ends a run beside the real one, before it does what must not be done twice or could not be undone."""


class _Stage(enum.Enum):
    COMPARE = "the captured graphs beside the module"
    CONTROL = "the module beside itself"
    NOISE = "the captured graphs beside themselves, with inputs that differ in their last bits"


@dataclass
class _Run:
    """A forward that has ended: its output, and the state it left."""

    aliases: Aliases
    """Stood in for inputs; of a run of the module itself only where autograd's graph of it begins."""
    output: Any
    python: PythonState
    changes: dict[str, torch.Tensor]
    random: RandomState


class Comparison:
    """See the module's text. One per session.

    Args:
        module: the target.
        eager: runs the module's own code.
        shadow: from now on regions take the inputs that the given function gives them, and run operator by operator;
            None ends that.
        on_wanted: told that the next call is to be a compared one.
    """

    def __init__(
        self,
        module: nn.Module,
        eager: Call,
        shadow: Callable[[Substitute | None], None],
        on_wanted: Callable[[], None],
    ) -> None:
        self.obstacle: str | None = None
        """Why captured graphs are not compared, as a sentence."""
        self.finding: str | None = None
        """Which result differs, as a sentence; nothing captured runs any more."""
        self.num_compared = 0
        """Comparisons that have ended."""
        self._has_agreed = False
        self.is_running = False
        """A run beside the real one is under way."""
        self._module, self._eager, self._shadow = module, eager, shadow
        self._on_wanted = on_wanted
        self._stage = _Stage.COMPARE
        self._steps, self._next = 0, 0
        self._reading: Reading | None = None
        self._num_without_backward = 0
        self._found: list[Difference] = []
        self._since = 0
        self._before: PythonState | None = None
        self._roots: list[object] = []
        self._is_ended = self._was_ended = self._is_disturbed = False
        self._noise: dict[str, float] = {}

    @property
    def is_proven(self) -> bool:
        """Whether the captured code as it is may run as it is."""
        return self.obstacle is not None or (self._has_agreed and self._reading is None)

    @property
    def may_convert(self) -> bool:
        """Whether Dynamo may capture now: beside a real run, or where nothing is compared."""
        return self.is_running or self.obstacle is not None

    def prevent(self, reason: str) -> None:
        """The captured code must not run beside the module: from now on it runs without comparison."""
        if self.obstacle is None:
            self.obstacle = reason
        self._is_ended = True

    def end(self) -> None:
        """A run beside the real one under way must not go on: a frame of it runs as it is."""
        self._is_ended = True

    def undo(self, value: object, where: str) -> None:
        """Captured code changes `value`: that is to be undone after a run beside the real one."""
        if self.obstacle is not None or (self._before is not None and value in self._before):
            return
        if is_followed(value) and len(self._roots) < _MOST_ROOTS:
            self._roots.append(value)
            self._is_ended = True
        else:
            self.prevent(f"{where}: it changes an object of {type(value).__qualname__} outside of the module")

    def check(self) -> None:
        """Raises: EndedEarly where the run beside the real one must not go on."""
        if self.is_running and self._is_ended:
            raise EndedEarly

    @property
    def was_ended(self) -> bool:
        """Whether the latest run beside the real one was left half-way, or an exception of the user's came before."""
        return self._was_ended

    def want(self) -> None:
        """A frame is to be captured: the next call is compared."""
        self._has_agreed = False
        self._on_wanted()

    def take_disturbed(self) -> bool:
        """Whether calls since this was last asked ran otherwise than the plan says."""
        was_disturbed, self._is_disturbed = self._is_disturbed, False
        return was_disturbed

    def state(self) -> dict[str, Any]:
        """For the report."""
        return {"steps": self.num_compared, "difference": self.finding, "obstacle": self.obstacle}

    def note_steps(self, count: int) -> None:
        """`count` steps ran unseen."""
        self._steps += count

    def step_ended(self) -> None:
        """A backward of this step has run by now, or never will."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None
            self._num_without_backward += 1
            if self._num_without_backward >= _WITHOUT_BACKWARD and self._stage is _Stage.COMPARE:
                self._judge([])
            elif self._num_without_backward >= _WITHOUT_BACKWARD:
                self._reject(self._found[0])

    def call(self, captured: Call, args: Any, kwargs: Any) -> Any:
        """A training call of the target under a plan other than eager. captured: runs its captured graphs."""
        self._steps += 1
        if self.obstacle is None and (has_saved_tensor_hooks() or current_backward() >= 0):
            self.prevent("it is called under saved-tensor hooks or within a backward")
        if self.obstacle is not None or (self.is_proven and self._steps < self._next):
            self._was_ended = False
            return captured(*args, **kwargs)
        self._is_disturbed = True
        if self.finding is not None or self._reading is not None:
            return self._eager(*args, **kwargs)
        return self._compare(captured, args, kwargs)

    # --- one compared step --------------------------------------------------------------------------------------------

    def _compare(self, captured: Call, args: Any, kwargs: Any) -> Any:
        self._was_ended = True
        try:
            python = self._before = PythonState(self._module, args, kwargs, self._roots)
            memory = Memory(python.tensors())
            if any(map(has_backward_hooks, self._module.modules())):
                raise UnsupportedError("a full backward hook would run twice")
        except UnsupportedError as error:
            self.prevent(str(error))
            self._was_ended = False
            return captured(*args, **kwargs)
        devices = devices_of(memory)
        random = RandomState(devices)

        def run(call: Call, aliases: Aliases) -> _Run:
            output = call(*args, **kwargs)
            return _Run(
                aliases,
                output,
                PythonState(self._module, args, kwargs, self._roots),
                memory.changes(),
                RandomState(devices),
            )

        first = Aliases(memory)
        output = self._eager(*args, **kwargs)
        try:
            real = run(lambda *args, **kwargs: output, first)
        except UnsupportedError as error:
            self.prevent(str(error))
            return output
        with deferred_signals():
            runs, found = self._run_beside(captured, run, real, python, memory, random)
            self._was_ended = not runs
        if found and self._stage is not _Stage.NOISE:
            self._judge(found)
        elif runs:
            self._follow(runs, found)
        return output

    def _run_beside(
        self,
        captured: Call,
        run: Callable[[Call, Aliases], _Run],
        real: _Run,
        python: PythonState,
        memory: Memory,
        random: RandomState,
    ) -> tuple[list[_Run], list[Difference]]:
        """Runs from the state that was before `real`, and puts back the one after it. Returns: `real` and the runs
        beside it, none where they were ended early, and the differences between the last two."""
        runs = [real]
        try:
            for call, aliases in self._beside(captured, memory):
                python.restore()
                memory.write({})
                random.restore()
                with self._shadowing(aliases):
                    runs.append(run(call, aliases))
            return runs, _differences(*runs[-2:])
        except EndedEarly:
            return [], []
        except Exception as error:
            return runs, [Difference("the captured code", f"raises {type(error).__name__}: {error}")]
        finally:
            real.python.restore()
            memory.write(real.changes)
            real.random.restore()
            self._before = None

    def _beside(self, captured: Call, memory: Memory) -> Iterator[tuple[Call, Aliases]]:
        """What runs beside the module at this stage, and the stand-ins for its inputs."""
        yield (self._eager if self._stage is _Stage.CONTROL else captured), Aliases(memory)
        if self._stage is _Stage.NOISE:
            yield captured, Aliases(memory, _NOISE)

    @contextlib.contextmanager
    def _shadowing(self, aliases: Aliases) -> Iterator[None]:
        self.is_running, self._is_ended = True, False

        def substitute(args: Sequence[Any]) -> list[Any]:
            if share_memory(args):
                self.prevent("two inputs of a captured graph share memory")
            self.check()
            return aliases.of(args)

        self._shadow(substitute)
        try:
            yield
        finally:
            self.is_running = False
            self._shadow(None)

    def _follow(self, runs: list[_Run], found: list[Difference]) -> None:
        """Compares the last two runs' gradients as well, once the user's backward has run through the first run."""
        real = runs[0]
        passage = Passage(_with_gradients(real), real.aliases.first)
        if not passage.outputs:
            self._judge(found)
            return

        def compare_gradients(reading: Reading) -> None:
            self._reading, self._num_without_backward = None, 0
            if not reading.is_whole:
                self._judge(found)
                return
            given = {_key(border, real.aliases): gradient for border, gradient in reading.given.items()}
            try:
                own, other = (given if run is real else _gradients(run, reading.taken) for run in runs[-2:])
                self._judge(found + _between(own, other, self._names()))
            except Exception as error:
                self._judge([Difference("the captured code's backward", f"raises {type(error).__name__}: {error}")])

        self._reading = Reading(passage, compare_gradients)

    def _names(self) -> dict[Key, str]:
        return {id(parameter): name for name, parameter in self._module.named_parameters()}

    def _judge(self, found: list[Difference]) -> None:
        """A comparison has ended."""
        self.num_compared += 1
        stage, self._stage = self._stage, _Stage.COMPARE
        if stage is _Stage.CONTROL and found:
            self.prevent(f"two runs of the module with equal inputs differ: {found[0]}")
        elif stage is _Stage.CONTROL and all(difference.how is None for difference in self._found):
            self._stage = _Stage.NOISE
        elif stage is _Stage.COMPARE and compare.unexplained(found, self._noise) is not None:
            self._found, self._stage, self._since = found, _Stage.CONTROL, self._steps
            self._has_agreed = False
        else:
            if stage is _Stage.NOISE:
                self._noise.update({difference.what: difference.size for difference in found})
            looked_at = found if stage is _Stage.COMPARE else self._found
            worst = compare.unexplained(looked_at, self._noise)
            self._has_agreed = worst is None
            self._next = min(2 * self._steps, self._steps + _FARTHEST)
            if worst is not None:
                self._reject(worst)

    def _reject(self, worst: Difference) -> None:
        self._has_agreed = False
        self.finding = f"its captured graphs do not compute what the module does: {worst}, since step {self._since}"


def _with_gradients(run: _Run) -> dict[int, torch.Tensor]:
    """The outputs that require grad, by their places among all leaves of the output."""
    leaves = enumerate(tree_leaves(run.output))
    return {index: leaf for index, leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad}


def _key(border: Border, aliases: Aliases) -> Key:
    node, _ = border
    return aliases.key(node.variable) if is_leaf(node) else border


def _gradients(run: _Run, taken: dict[int, torch.Tensor]) -> dict[Key, torch.Tensor]:
    """What a run's part of autograd's graph gives out where its outputs get the gradients `taken`."""
    outputs = _with_gradients(run)
    borders = list(Passage(outputs, run.aliases.first).borders)
    inputs = [node.variable if is_leaf(node) else GradientEdge(node, number) for node, number in borders]
    indices = [index for index in taken if index in outputs and outputs[index].grad_fn is not None]
    if not inputs or not indices:
        return {}
    tensors, gradients = [outputs[index] for index in indices], [taken[index] for index in indices]
    found = torch.autograd.grad(tensors, inputs, gradients, allow_unused=True)
    return {
        _key(border, run.aliases): gradient.detach()
        for border, gradient in zip(borders, found, strict=True)
        if gradient is not None
    }


def _between(own: dict[Key, torch.Tensor], other: dict[Key, torch.Tensor], names: dict[Key, str]) -> list[Difference]:
    found = []
    for key in {**names, **own, **other}:
        name = f"the gradient of {names.get(key, 'an input')}"
        found += compare.of_tensors(name, own.get(key), other.get(key))
    return found


def _differences(own: _Run, other: _Run) -> list[Difference]:
    """Between the forwards of two runs."""
    found = compare.of_outputs(own.output, other.output)
    for name in {**own.changes, **other.changes}:
        if (name in own.changes) != (name in other.changes):
            found.append(Difference(name, "is changed by one of them alone"))
        else:
            found += compare.of_tensors(name, own.changes[name], other.changes[name])
    if (attribute := own.python.difference(other.python)) is not None:
        found.append(Difference(*attribute))
    if own.random != other.random:
        found.append(Difference("the random generator", "is in another state afterwards"))
    return found
