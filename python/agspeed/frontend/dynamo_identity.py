# SPDX-License-Identifier: Apache-2.0
"""What Dynamo remembers from one conversion to the next, kept apart for each captured target.

Dynamo keeps three things for the whole process: by file, line and name of the code, which sizes were seen to vary; by
code object, the compiled versions, of which there may be eight, and whether the code has been given up. Models of one
class share their code, and all targets that of our own caller. So the batches of one model would make the next one's
sizes symbolic, use up its versions or leave it to eager. With an identity of its own a target is captured as it would
be in a process without others.

Threads: used under Dynamo's compile lock; made and dropped on any thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any

from torch.utils.weak import WeakIdKeyDictionary

from agspeed.torch_compat import dynamo
from agspeed.torch_compat.dynamo import ConvertFrameReturn, FrameAction, FrameExecStrategy, Tracker

_given_up_by_any = Tracker()
"""Code that some target's conversion has told Dynamo to leave alone."""


_MOST_FAILURES = 4
"""Calls that could not be captured of code with compiled versions, after which no further version is tried."""


def this_call_alone() -> ConvertFrameReturn:
    """The answer by which a frame runs as it is, and Dynamo asks again at the next call that fits no version."""
    return ConvertFrameReturn(FrameExecStrategy(FrameAction.DEFAULT, FrameAction.DEFAULT), apply_to_code=False)


class DynamoIdentity:
    """See the module's text.

    Args:
        backend: the function by which Dynamo tells the target's compiled versions from others.
        codes: of the target, which the user's own ``torch.compile`` may have given up for a reason that does not hold
            here.
    """

    def __init__(self, backend: Callable[..., Any], codes: Iterable[CodeType]) -> None:
        self._backend = backend
        self._sizes = dynamo.new_sizes()
        self._given_up: Any = WeakIdKeyDictionary()
        self._failures: Any = WeakIdKeyDictionary()
        self._converted = Tracker()
        weakref.finalize(self, _drop_versions, self._converted, backend).atexit = False
        _try_again(codes)

    def in_force(self) -> AbstractContextManager[None]:
        """Inside the block Dynamo knows of sizes what this target's batches have taught it."""
        return dynamo.knowing(self._sizes)

    def limits(self, code: CodeType) -> dict[str, Any]:
        """Settings by which other targets' versions of `code` do not count as this one's."""
        return dynamo.limits(code, self._backend)

    def expect_floats(self, code: CodeType, values: dict[str, Any]) -> None:
        """The floats among a frame's `values` are results: they differ from call to call, and code must not ask which
        one it was compiled with."""
        for name, value in values.items():
            if type(value) is float:
                dynamo.expect_float(self._sizes, code, name)

    def own_versions(self, entry: Any) -> Any:
        """The compiled versions of this target among the ones that Dynamo hands to a conversion."""
        return dynamo.own_versions(entry, self._backend)

    def has_versions(self, code: CodeType) -> bool:
        """Whether compiled versions of `code` exist for this target."""
        return any(version.backend is self._backend for version in dynamo.versions_of(code))

    def leave_this_call(self, code: CodeType) -> ConvertFrameReturn:
        """The answer for a call of `code` that could not be captured, where other calls were: their versions stay."""
        self._failures[code] = self._failures.get(code, 0) + 1
        return this_call_alone()

    def refusal(self, code: CodeType) -> ConvertFrameReturn | None:
        """The answer to Dynamo for code that this target has given up, or None."""
        if self._failures.get(code, 0) >= _MOST_FAILURES:
            return this_call_alone()
        strategy = self._given_up.get(code)
        return self._for_this_target(code, ConvertFrameReturn(strategy)) if strategy is not None else None

    def note(self, code: CodeType, answer: ConvertFrameReturn) -> ConvertFrameReturn:
        """Remembers a conversion's `answer`, and returns it such that it concerns no other target."""
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
    """These, and code that earlier targets gave up, are converted once more for a new one."""
    given_up = (reference() for reference in _given_up_by_any.seen)
    for code in (*codes, *(code for code in given_up if code is not None)):
        dynamo.try_again(code)
    _given_up_by_any.clear()


def _drop_versions(converted: Tracker, backend: Callable[..., Any]) -> None:
    """Frees what was compiled for a target that is gone, where the code itself lives on."""
    for reference in converted.seen:
        code = reference()
        for version in dynamo.versions_of(code) if code is not None else []:
            if version.backend is backend:
                dynamo.drop(version, "its model is gone")
