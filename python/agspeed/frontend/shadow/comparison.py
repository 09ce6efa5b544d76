# SPDX-License-Identifier: Apache-2.0
"""Comparison: compares captured graphs with the user's own module before they train.

In a compared step the module itself runs, as the real run. Its captured graphs run beside it, operator by operator, on
the same inputs, random numbers and Python state, all of which is restored. Outputs, in-place changes and attributes are
compared at once. Gradients are compared after the user's own backward: the run beside gets the gradients that the real
outputs get. The gate (`tuning/gate`) proves each candidate equal to its graph, so both together prove a candidate equal
to the module.

A graph is compared before its first real step and in the 2nd, 4th, 8th, ... step. After step 4096, comparisons are at
least 4096 steps apart and take a bounded share of the time. A difference is examined in two more steps before it
counts: the module may differ from itself (it reads a clock), or rounding may explain the difference.

Threads: the session's training thread. A GPU's backward may end on one of autograd's threads.
"""

from __future__ import annotations

import contextlib
import enum
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from agspeed.devices.random_state import RandomState
from agspeed.frontend.shadow import compare
from agspeed.frontend.shadow.aliases import Aliases, Key, share_memory
from agspeed.frontend.shadow.compare import Difference
from agspeed.frontend.shadow.gradients import Passage, Reading
from agspeed.frontend.shadow.memory import Memory
from agspeed.frontend.shadow.python_state import is_followed
from agspeed.frontend.shadow.runs import Before, Run, between, differences, gradients, key_of
from agspeed.frontend.target import UserCall
from agspeed.regions.run_beside import RunBeside
from agspeed.reporting.parts import Json
from agspeed.torch_compat.autograd import current_backward, has_leaf_hooks, has_saved_tensor_hooks
from agspeed.tuning.interrupted import deferred_signals

_FARTHEST = 4096
"""Comparisons are rare after this step, and then at least this many steps apart."""
_SHARE = 0.001
"""The largest fraction of the time that rare comparisons may take."""
_RETRY_STEPS = 64
"""After this many steps a rare comparison that was not allowed yet is tried again."""
_MOST_ROOTS = 64
"""A forward may change at most this many objects outside of the module; otherwise it is not compared."""
_MOST_TRIES = 4
"""After this many comparisons in a row without a capture, a frame that fits no graph always runs eagerly."""
_WITHOUT_BACKWARD = 3
"""After this many compared forwards in a row without a backward, only outputs are compared."""


class EndedEarly(BaseException):
    """Ends a run beside the real one before it does something that must not happen twice or could not be undone."""


class _Stage(enum.Enum):
    COMPARE = "the captured graphs beside the module"
    CONTROL = "the module beside itself"
    NOISE = "the captured graphs beside themselves, with inputs that differ in their last bits"


class _Beside:
    """Provides the inputs of the regions in one run; see `RunBeside`."""

    def __init__(self, comparison: Comparison, aliases: Aliases) -> None:
        self._comparison, self._aliases = comparison, aliases

    def begin(self, args: Sequence[Any], changed: Collection[int] | None) -> Sequence[object]:
        if share_memory(args):
            self._comparison.prevent("two inputs of a captured graph share memory")
        self._comparison.check()
        return self._aliases.of(args, changed)

    def end(self, args: Sequence[Any], given: Sequence[object], changed: Collection[int]) -> None:
        if not self._aliases.write_back(args, given, changed):
            self._comparison.prevent("it changes a tensor in place that is not reached from the module")
        self._comparison.check()


class Comparison:
    """The comparison of one session.

    Args:
        module: the target.
        eager: runs the module's own code.
        shadow: makes regions run operator by operator, with inputs from the given object; None ends that.
        on_wanted: called if the next calls must go through the comparison.
        on_left: called once, with a sentence, if calls that fit no graph stay eager.
    """

    def __init__(
        self,
        module: nn.Module,
        eager: UserCall,
        shadow: Callable[[RunBeside | None], None],
        on_wanted: Callable[[], None],
        on_left: Callable[[str], None],
    ) -> None:
        self.obstacle: str | None = None
        """A sentence that says why captured graphs are not compared, or None."""
        self.finding: str | None = None
        """A sentence that says which result differs, or None. After a difference no captured code runs."""
        self.num_compared = 0
        """The number of finished comparisons."""
        self._has_agreed = False
        self.is_running = False
        """True during a run beside the real one."""
        self._module, self._eager, self._shadow = module, eager, shadow
        self._on_wanted, self._on_left = on_wanted, on_left
        self._thread = threading.get_ident()
        self._stage = _Stage.COMPARE
        self._steps, self._next = 0, 0
        self._seconds, self._earliest = 0.0, 0.0  # time of this comparison; earliest beginning of the next
        self._reading: Reading | None = None
        self._num_without_backward = 0
        self._found: list[Difference] = []
        self._since = 0
        self._before: Before | None = None
        self._roots: list[object] = []
        self._is_missed = self._is_wanted = False  # a call, or a frame within one, fits no graph
        self._num_captured = self._num_fruitless = 0
        self._is_ended = self._was_ended = self._is_disturbed = False
        self._noise: dict[str, float] = {}

    @property
    def is_proven(self) -> bool:
        """Whether calls may bypass the comparison and run the captured code directly."""
        return self.obstacle is not None or (self._has_agreed and self._reading is None)

    @property
    def may_convert(self) -> bool:
        """Whether Dynamo may capture now: during a run beside the real one, or if nothing is compared."""
        return self.is_running or self.obstacle is not None

    def prevent(self, reason: str) -> None:
        """Ends all comparisons: the captured code must not run beside the module, and runs without comparison."""
        if self.obstacle is None:
            self.obstacle = reason
        self._is_ended = True

    def end(self) -> None:
        """Ends the present run beside the real one, because one of its frames runs as it is."""
        self._is_ended = True

    def undo(self, value: object, is_local: bool, where: str) -> None:
        """Notes that captured code changes `value`, which must be undone after a run beside the real one. is_local: the
        object came with the call, and the next call may have another one."""
        if self.obstacle is not None or (self._before is not None and value in self._before):
            return
        if is_followed(value) and not is_local and len(self._roots) < _MOST_ROOTS:
            self._roots.append(value)
            self._is_ended = True
        else:
            self.prevent(f"{where}: it changes an object of {type(value).__qualname__} outside of the module")

    def check(self) -> None:
        """Raises: EndedEarly if the run beside the real one must not continue."""
        if self.is_running and self._is_ended:
            raise EndedEarly

    @property
    def was_ended(self) -> bool:
        """Whether the latest run beside the real one was incomplete, or the user's code raised before it."""
        return self._was_ended

    def miss(self, *, is_whole: bool) -> None:
        """Notes a frame that fits no graph and runs as it is. is_whole: it is the whole call, which can be compared now
        (`take_missed`). Otherwise the next call is compared. Calls of other threads run as they are."""
        if threading.get_ident() != self._thread:
            return
        self._is_missed |= is_whole
        if not is_whole and self._num_fruitless < _MOST_TRIES:
            self._is_wanted, self._has_agreed = True, False
            self._on_wanted()

    def take_missed(self) -> bool:
        """Returns whether the call that begins fits no graph, and clears this state."""
        if threading.get_ident() != self._thread:
            return False
        was_missed, self._is_missed = self._is_missed, False
        return was_missed

    def note_captured(self) -> None:
        """Notes that a frame was captured."""
        self._num_captured += 1

    def take_disturbed(self) -> bool:
        """Returns whether calls since the last query deviated from the plan."""
        was_disturbed, self._is_disturbed = self._is_disturbed, False
        return was_disturbed

    def state(self) -> Json:
        """Returns the comparison's state for the report."""
        return {"steps": self.num_compared, "difference": self.finding, "obstacle": self.obstacle}

    def note_steps(self, count: int) -> None:
        """Reports `count` steps that ran unobserved."""
        self._steps += count

    def step_ended(self) -> None:
        """Ends a step. A backward that has not run by now will not run."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None
            self._num_without_backward += 1
            if self._num_without_backward >= _WITHOUT_BACKWARD and self._stage is _Stage.COMPARE:
                self._judge([])
            elif self._num_without_backward >= _WITHOUT_BACKWARD:
                self._reject(self._found[0])

    def passes_by(self) -> bool:
        """Returns whether calls bypass the comparison, because nothing is compared any more."""
        if self.obstacle is not None:
            self._was_ended = False
        return self.obstacle is not None

    def call(self, captured: UserCall, args: Any, kwargs: Any) -> object:
        """Runs a training call of the target under a plan other than eager. captured: runs its captured graphs."""
        self._steps += 1
        is_due = not self._has_agreed or self._is_next_due()
        if self.obstacle is None and (self._reading is not None or is_due):
            return self.call_compared(captured, args, kwargs)
        self._was_ended = False
        return captured(*args, **kwargs)

    def _is_next_due(self) -> bool:
        if self._steps < self._next:
            return False
        if self._steps > _FARTHEST and time.monotonic() < self._earliest:
            self._next = self._steps + _RETRY_STEPS
            return False
        return True

    def call_compared(self, captured: UserCall, args: Any, kwargs: Any) -> object:
        """Runs eagerly and compares, unless an earlier call still waits for its backward. Requires: no obstacle."""
        self._is_disturbed = True
        self._on_wanted()
        if self.finding is not None or self._reading is not None:
            return self._eager(*args, **kwargs)
        if has_saved_tensor_hooks() or current_backward() >= 0:
            self.prevent("it is called under saved-tensor hooks or within a backward")
            return captured(*args, **kwargs)
        with self._timed():
            try:
                return self._compare(captured, args, kwargs)
            finally:
                self._before = None

    # --- one compared step --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds += time.monotonic() - began
            self._earliest = time.monotonic() + self._seconds / _SHARE

    def _compare(self, captured: UserCall, args: Any, kwargs: Any) -> object:
        self._was_ended, self._seconds = True, 0.0
        torch.clear_autocast_cache()  # so that each run casts the weights itself
        with deferred_signals():
            try:
                before = self._before = Before(self._module, args, kwargs, self._roots)
            except Exception as error:
                self.prevent(f"its state cannot be copied: {error}")
        if self.obstacle is not None:
            self._was_ended = False
            return captured(*args, **kwargs)
        beginning, num_captured = Aliases(before.memory), self._num_captured
        output = self._eager(*args, **kwargs)
        with deferred_signals():
            runs, found = self._run_beside(captured, before, beginning, output, args, kwargs)
            self._was_ended = not runs
        self._count_fruitless(self._num_captured > num_captured)
        if found and self._stage is not _Stage.NOISE:
            self._judge(found)
        elif runs:
            self._follow(runs, found)
        return output

    def _count_fruitless(self, has_captured: bool) -> None:
        if self._is_wanted:
            self._is_wanted = False
            self._num_fruitless = 0 if has_captured else self._num_fruitless + 1
            if self._num_fruitless == _MOST_TRIES:
                self._on_left("parts of calls fit no captured graph, and a graph of theirs could not be captured")

    def _run_beside(
        self, captured: UserCall, before: Before, beginning: Aliases, output: object, args: Any, kwargs: Any
    ) -> tuple[list[Run], list[Difference]]:
        """Runs from the state before the real run, which returned `output`. Then restores the state after the real run.
        Returns: the real run and the runs beside it ([] if they were ended early), and the differences between the last
        two."""
        runs: list[Run] = []
        try:
            runs.append(real := before.ended(beginning, output, args, kwargs))
            if before.memory.has_changed_parameters():
                self.prevent("its forward changes parameters")
                return [], []
            for call, aliases in self._beside(captured, before.memory):
                before.restore(real)
                torch.clear_autocast_cache()
                try:
                    with self._shadowing(aliases):
                        result = call(*args, **kwargs)
                except Exception as error:
                    return runs, [Difference("the captured code", f"raises {type(error).__name__}: {error}")]
                runs.append(before.ended(aliases, result, args, kwargs))
            return runs, differences(before.memory, *runs[-2:])
        except EndedEarly:
            return [], []
        except Exception as error:
            self.prevent(f"its results cannot be compared: {type(error).__name__}: {error}")
            return [], []
        finally:
            if runs:
                runs[0].restore(before.memory)

    def _beside(self, captured: UserCall, memory: Memory) -> Iterator[tuple[UserCall, Aliases]]:
        """Yields the functions to run beside the module at this stage, each with stand-ins for its inputs."""
        yield (self._eager if self._stage is _Stage.CONTROL else captured), Aliases(memory)
        if self._stage is _Stage.NOISE:
            yield captured, Aliases(memory, is_noisy=True)

    @contextlib.contextmanager
    def _shadowing(self, aliases: Aliases) -> Iterator[None]:
        self.is_running, self._is_ended = True, False
        self._shadow(_Beside(self, aliases))
        try:
            yield
        finally:
            self.is_running = False
            self._shadow(None)

    def _follow(self, runs: list[Run], found: list[Difference]) -> None:
        """Also compares the gradients of the last two runs, once the user's backward has run through the first run."""
        real, is_control = runs[0], self._stage is _Stage.CONTROL
        passage = Passage(real.outputs(), real.aliases.first)
        has_hooks = any(map(has_leaf_hooks, self._module.parameters()))
        if not passage.outputs or (is_control and (has_hooks or real.changes)):
            self._judge(found)  # in a control run, hooks would run twice, and buffers have changed since
            return

        def compare_gradients(reading: Reading) -> None:
            self._reading, self._num_without_backward = None, 0
            with self._timed(), deferred_signals():
                compare_read(reading)

        def compare_read(reading: Reading) -> None:
            if not reading.is_whole:
                self._judge(found)
                return
            given = {key_of(border, real.aliases): gradient for border, gradient in reading.given.items()}
            random, buffers = RandomState(real.devices), Memory(self._module.named_buffers())
            versions = buffers.versions()
            try:
                own, other = (given if run is real else gradients(run, reading.taken) for run in runs[-2:])
                self._judge(found + between(own, other, self._names()))
            except Exception as error:
                self._judge([Difference("the captured code's backward", f"raises {type(error).__name__}: {error}")])
            finally:  # checkpointed parts have run once more
                random.restore()
                buffers.write({}, versions)

        self._reading = Reading(passage, compare_gradients)

    def _names(self) -> dict[Key, str]:
        return {id(parameter): name for name, parameter in self._module.named_parameters()}

    def _judge(self, found: list[Difference]) -> None:
        """Ends a comparison with the differences that it found, and decides on the next stage."""
        self.num_compared += 1
        stage, self._stage = self._stage, _Stage.COMPARE
        if stage is _Stage.CONTROL and found:
            self.prevent(f"two runs of the module with equal inputs differ: {found[0]}")
        elif stage is _Stage.CONTROL and all(difference.how is None for difference in self._found):
            self._stage, self._num_without_backward = _Stage.NOISE, 0
        elif stage is _Stage.COMPARE and compare.unexplained(found, self._noise) is not None:
            self._found, self._stage, self._since = found, _Stage.CONTROL, self._steps
            self._has_agreed, self._num_without_backward = False, 0
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
        self.finding = f"its captured graphs compute other results than the module: {worst}, since step {self._since}"
