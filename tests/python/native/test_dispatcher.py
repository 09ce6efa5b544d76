# SPDX-License-Identifier: Apache-2.0
"""The dispatcher, which Dynamo's generated code calls. It forwards to its target, which can be switched at any time."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from agspeed import native
from agspeed.regions.region import PythonDispatcher

_native: Any = native.load()


def test_forwards_arguments_and_counts() -> None:
    dispatcher = _native.Dispatcher(lambda *args, **kwargs: (args, kwargs))
    assert dispatcher(1, 2, key=3) == ((1, 2), {"key": 3})
    assert dispatcher() == ((), {})
    assert dispatcher.calls == 2


def test_a_swap_takes_effect_at_the_next_call() -> None:
    dispatcher = _native.Dispatcher(lambda: None)

    def swaps_itself() -> str:
        dispatcher.set_target(lambda: "second")
        gc.collect()
        return "first"

    dispatcher.set_target(swaps_itself)
    del swaps_itself
    assert dispatcher() == "first"
    assert dispatcher() == "second"


def test_exceptions_pass_through() -> None:
    def fails() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        _native.Dispatcher(fails)()


@pytest.mark.parametrize("target", [None, 3, "text"])
def test_targets_must_be_callable(target: Any) -> None:
    with pytest.raises(TypeError, match="callable"):
        _native.Dispatcher(target)
    dispatcher = _native.Dispatcher(max)
    with pytest.raises(TypeError, match="callable"):
        dispatcher.set_target(target)
    assert dispatcher.target is max


def test_cycles_are_collected() -> None:
    class Target:
        def __call__(self) -> None: ...

    target = Target()
    dispatcher = _native.Dispatcher(target)
    target.dispatcher = dispatcher  # type: ignore[attr-defined]
    watched = [weakref.ref(target), weakref.ref(dispatcher)]
    del target, dispatcher
    gc.collect()
    assert [ref() for ref in watched] == [None, None]


class _Noting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("make", ["native", "python"])
def test_modes_of_the_caller_are_hidden_and_modes_of_the_target_work(make: str) -> None:
    outer, second, inner = _Noting(), _Noting(), _Noting()

    def target(x: torch.Tensor) -> torch.Tensor:
        torch.sin(x)
        with inner:
            torch.cos(x)
        raise KeyError

    dispatcher = PythonDispatcher(target) if make == "python" else _native.Dispatcher(target)
    with outer, second:
        with pytest.raises(KeyError):
            dispatcher(torch.ones(2))
        torch.tan(torch.ones(2))
    assert inner.seen == [torch.cos]
    assert torch.sin not in (*outer.seen, *second.seen) and torch.cos not in (*outer.seen, *second.seen)
    assert outer.seen[-1] is second.seen[-1] is torch.tan
