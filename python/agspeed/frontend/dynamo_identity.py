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

import contextlib
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from torch._C._dynamo.eval_frame import (
    _debug_get_cache_entry_list,
    set_code_exec_strategy,
)
from torch._dynamo import pgo
from torch._dynamo.convert_frame import Tracker, compile_lock
from torch._dynamo.guards import DeletedGuardManagerWrapper
from torch._dynamo.types import (  # type: ignore[attr-defined]
    ConvertFrameReturn,
    FrameAction,
    FrameExecStrategy,
)
from torch._dynamo.utils import CleanupManager
from torch.utils.weak import WeakIdKeyDictionary

_given_up_by_any = Tracker()
"""Code that some target's conversion has told Dynamo to leave alone."""


@dataclass
class _Version:
    """A compiled version of a frame, as Dynamo's conversion looks at them: a list of those of one target."""

    guard_manager: Any
    code: CodeType
    compile_id: Any
    next: _Version | None


class DynamoIdentity:
    """See the module's text.

    Args:
        backend: the function by which Dynamo tells the target's compiled versions from others.
        codes: of the target, which the user's own ``torch.compile`` may have given up for a reason that does not hold
            here.
    """

    def __init__(self, backend: Callable[..., Any], codes: Iterable[CodeType]) -> None:
        self._backend = backend
        self._sizes: defaultdict[pgo.CodeId, pgo.CodeState] = defaultdict(pgo.CodeState)
        self._given_up: Any = WeakIdKeyDictionary()
        self._converted = Tracker()
        weakref.finalize(self, _drop_versions, self._converted, backend).atexit = False
        _try_again(codes)

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Inside the block Dynamo knows of sizes what this target's batches have taught it."""
        with compile_lock:
            others, pgo._CODE_STATE = pgo._CODE_STATE, self._sizes
            try:
                yield
            finally:
                pgo._CODE_STATE = others

    def expect_floats(self, code: CodeType, values: dict[str, Any]) -> None:
        """The floats among a frame's `values` are results: they differ from call to call, and code must not ask which
        one it was compiled with."""
        seen = self._sizes[pgo.CodeId.make(code)].automatic_dynamic
        for name, value in values.items():
            if type(value) is float:
                seen[f"L[{name!r}]"] = pgo.FrameStateSizeEntry.make_scalar(pgo.auto_dynamic)  # type: ignore[arg-type]

    def own_versions(self, entry: Any) -> Any:
        """Of a list of compiled versions, those of this target."""
        own = [version for version in _listed(entry) if version.backend is self._backend]
        found: _Version | None = None
        for version in reversed(own):
            found = _Version(version.guard_manager, version.code, version.compile_id, found)
        return found

    def refusal(self, code: CodeType, entry: Any) -> ConvertFrameReturn | None:
        """The answer to Dynamo for code that this target has given up, or None."""
        strategy = self._given_up.get(code)
        return self._for_this_target(ConvertFrameReturn(strategy), entry) if strategy is not None else None

    def note(self, code: CodeType, answer: ConvertFrameReturn, entry: Any) -> ConvertFrameReturn:
        """Remembers a conversion's `answer`, and returns it such that it concerns no other target.

        Args:
            entry: the list of all compiled versions that there were before.
        """
        if answer.guarded_code is not None:
            self._converted.add(code)
            return answer
        self._given_up[code] = answer.frame_exec_strategy
        _given_up_by_any.add(code)
        return self._for_this_target(answer, entry)

    def _for_this_target(self, answer: ConvertFrameReturn, entry: Any) -> ConvertFrameReturn:
        is_shared = any(version.backend is not self._backend for version in _listed(entry))
        return ConvertFrameReturn(answer.frame_exec_strategy, answer.apply_to_code and not is_shared)


def _listed(entry: Any) -> Iterator[Any]:
    while entry is not None:
        yield entry
        entry = entry.next


def _try_again(codes: Iterable[CodeType]) -> None:
    """These, and code that earlier targets gave up, are converted once more for a new one."""
    given_up = (reference() for reference in _given_up_by_any.seen)
    for code in (*codes, *(code for code in given_up if code is not None)):
        set_code_exec_strategy(code, FrameExecStrategy(FrameAction.DEFAULT, FrameAction.DEFAULT))
    _given_up_by_any.clear()


def _drop_versions(converted: Tracker, backend: Callable[..., Any]) -> None:
    """Frees what was compiled for a target that is gone, where the code itself lives on: Dynamo's own clean-up waits
    for compiled code that the tracebacks of later conversions keep."""
    for reference in converted.seen:
        code = reference()
        for version in _debug_get_cache_entry_list(code) if code is not None else []:
            state = getattr(version.guard_manager, "extra_state", None)
            if version.backend is not backend or state is None:
                continue
            compiled = version.code
            state.invalidate(version, DeletedGuardManagerWrapper("its model is gone"))
            if id(compiled) in CleanupManager.instance.values:
                CleanupManager.instance._remove_id(id(compiled))
