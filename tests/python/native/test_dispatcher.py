# SPDX-License-Identifier: Apache-2.0
"""The dispatcher, which Dynamo's generated code calls. It forwards to its target, which can be switched at any time."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from agspeed import native

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
