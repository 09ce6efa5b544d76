# SPDX-License-Identifier: Apache-2.0
"""Separates the state that Dynamo keeps between conversions, so that each captured target has its own.

Dynamo keeps three things for the whole process. By file, line and name of the code, it keeps which sizes have varied.
By code object, it keeps the compiled versions (at most eight) and whether the code was given up. Models of one class
share their code objects, and all targets share the code of agspeed's own caller. So batches of one model could make the
sizes of the next one symbolic, use up its versions, or make it run eagerly. With its own identity, each target is
captured as in a process without other targets.

Threads: used under Dynamo's compile lock; made and dropped on any thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any, Protocol

from torch.utils.weak import WeakIdKeyDictionary

from agspeed.torch_compat import dynamo
from agspeed.torch_compat.dynamo import ConvertFrameReturn, FrameAction, FrameExecStrategy, Tracker

_given_up_by_any = Tracker()
"""Code that Dynamo skips because of the conversion of some target."""


_MOST_FAILURES = 4
"""After this many failed captures of code that has compiled versions, no further version is tried."""


class GuardFailure(Protocol):
    """The part of Dynamo's `GuardFail` that is used here."""

    reason: str


def this_call_alone() -> ConvertFrameReturn:
    """Returns the answer that runs a frame as it is. Dynamo asks again at the next call that fits no version."""
    return ConvertFrameReturn(FrameExecStrategy(FrameAction.DEFAULT, FrameAction.DEFAULT), apply_to_code=False)


class DynamoIdentity:
    """The Dynamo state of one target.

    Args:
        backend: the function by which Dynamo distinguishes the target's compiled versions from others.
        codes: the target's code objects. The user's own ``torch.compile`` may have given them up for a reason that does
            not hold here.
    """

    def __init__(self, backend: Callable[..., object], codes: Iterable[CodeType]) -> None:
        self._backend = backend
        self._sizes = dynamo.new_sizes()
        self._given_up: Any = WeakIdKeyDictionary()
        self._failures: Any = WeakIdKeyDictionary()
        self._converted = Tracker()
        weakref.finalize(self, _drop_versions, self._converted, backend).atexit = False
        _try_again(codes)

    def in_force(self) -> AbstractContextManager[None]:
        """Makes Dynamo use this target's record of varying sizes inside the block."""
        return dynamo.knowing(self._sizes)

    def limits(self, code: CodeType) -> dict[str, object]:
        """Returns Dynamo settings that do not count other targets' versions of `code` towards this target's limit."""
        return dynamo.limits(code, self._backend)

    def expect_floats(self, code: CodeType, values: dict[str, object]) -> None:
        """Makes Dynamo expect the floats in a frame's `values` to vary: they are results that differ from call to
        call, so a version must not be specialized to one of them."""
        for name, value in values.items():
            if type(value) is float:
                dynamo.expect_float(self._sizes, code, name)

    def own_versions(self, entry: object) -> object:
        """Returns this target's compiled versions among the versions that Dynamo passes to a conversion."""
        return dynamo.own_versions(entry, self._backend)

    def has_versions(self, code: CodeType) -> bool:
        """Returns whether compiled versions of `code` exist for this target."""
        return any(version.backend is self._backend for version in dynamo.versions_of(code))

    def leave_this_call(self, code: CodeType) -> ConvertFrameReturn:
        """Returns the answer for a call of `code` that could not be captured. Versions of other calls stay valid."""
        self._failures[code] = self._failures.get(code, 0) + 1
        return this_call_alone()

    def refusal(self, code: CodeType) -> ConvertFrameReturn | None:
        """Returns the answer to Dynamo for code that this target has given up, or None for other code."""
        if self._failures.get(code, 0) >= _MOST_FAILURES:
            return this_call_alone()
        strategy = self._given_up.get(code)
        return self._for_this_target(code, ConvertFrameReturn(strategy)) if strategy is not None else None

    def note(self, code: CodeType, answer: ConvertFrameReturn) -> ConvertFrameReturn:
        """Records a conversion's `answer` and returns it in a form that does not affect other targets."""
        if answer.guarded_code is not None:
            self._converted.add(code)
            return answer
        self._given_up[code] = answer.frame_exec_strategy
        _given_up_by_any.add(code)
        return self._for_this_target(code, answer)

    def _for_this_target(self, code: CodeType, answer: ConvertFrameReturn) -> ConvertFrameReturn:
        is_shared = any(version.backend is not self._backend for version in dynamo.versions_of(code))
        return ConvertFrameReturn(answer.frame_exec_strategy, answer.apply_to_code and not is_shared)


def _try_again(codes: Iterable[CodeType]) -> None:
    """Makes Dynamo convert these codes, and all code that earlier targets gave up, again for a new target."""
    given_up = (reference() for reference in _given_up_by_any.seen)
    for code in (*codes, *(code for code in given_up if code is not None)):
        dynamo.try_again(code)
    _given_up_by_any.clear()


def _drop_versions(converted: Tracker, backend: Callable[..., object]) -> None:
    """Frees the compiled versions of a deleted target from code objects that still exist."""
    for reference in converted.seen:
        code = reference()
        for version in dynamo.versions_of(code) if code is not None else []:
            if version.backend is backend:
                dynamo.drop(version, "its model is gone")
