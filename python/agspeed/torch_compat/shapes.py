# SPDX-License-Identifier: Apache-2.0
"""Fake tensors, symbolic sizes, and the context that tracing keeps them in.

Without this part, no graph can be captured, checked or sent to another process, so everything runs eagerly. All needs
exist since torch 2.11. A shape environment belongs to one graph. Threads: the thread that traces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

from agspeed.torch_compat.part import Part

if TYPE_CHECKING:
    from torch._guards import CompileId, TracingContext, detect_fake_mode, tracing
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
    from torch.utils._sympy.functions import CeilDiv, FloorDiv, Identity, Max, Min, Mod, ModularIndexing, PythonMod
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

__all__ = [
    "CeilDiv",
    "CompileId",
    "DimDynamic",
    "FakeTensor",
    "FakeTensorMode",
    "FloorDiv",
    "Identity",
    "Max",
    "Min",
    "Mod",
    "ModularIndexing",
    "PythonMod",
    "ShapeEnv",
    "TracingContext",
    "ValueRanges",
    "detect_fake_mode",
    "int_oo",
    "tracing",
    "unset_fake_temporarily",
]

_ENV = "torch.fx.experimental.symbolic_shapes.ShapeEnv"
FAKE_TENSOR = "torch._subclasses.fake_tensor.FakeTensor"
"""The name of the class in a graph's annotations."""
PART = Part(
    "shapes",
    __name__,
    exports=(
        "torch._guards.CompileId",
        "torch._guards.TracingContext",
        "torch._guards.detect_fake_mode",
        "torch._guards.tracing",
        FAKE_TENSOR,
        "torch._subclasses.fake_tensor.FakeTensorMode",
        "torch._subclasses.fake_tensor.unset_fake_temporarily",
        "torch.fx.experimental.symbolic_shapes.DimDynamic",
        _ENV,
        *(
            f"torch.utils._sympy.functions.{name}"
            for name in ("CeilDiv", "FloorDiv", "Identity", "Max", "Min", "Mod", "ModularIndexing", "PythonMod")
        ),
        "torch.utils._sympy.numbers.int_oo",
        "torch.utils._sympy.value_ranges.ValueRanges",
    ),
    needs=(
        "torch._subclasses.meta_utils.MetaConverter.describer",
        "torch._subclasses.meta_utils.MetaTensorDescriber.lookup_tensor",
        "torch._guards.TracingContext.fake_mode",
        "torch._guards.TracingContext.fw_metadata",
        "torch._guards.TracingContext.try_get",
        f"{FAKE_TENSOR}.fake_mode",
        f"{FAKE_TENSOR}.item_memo",
        "torch._subclasses.fake_tensor.FakeTensorMode(shape_env)",
        "torch._subclasses.fake_tensor.FakeTensorMode.shape_env",
        "torch.fx.experimental.sym_node.SymNode._expr",
        "torch.fx.experimental.sym_node.SymNode.hint",
        "torch.fx.experimental.symbolic_shapes.DimDynamic.DYNAMIC",
        f"{_ENV}._generate_unique_id",
        f"{_ENV}._set_replacement",
        f"{_ENV}.backed_var_to_val",
        f"{_ENV}.create_symbol(positive, do_not_specialize_zero_one)",
        f"{_ENV}.create_symfloatnode(hint)",
        f"{_ENV}.create_symintnode(hint)",
        f"{_ENV}.suppress_guards",
        f"{_ENV}.unique_ids",
        f"{_ENV}.var_to_range",
        "torch.utils._sympy.symbol.SymT.FLOAT",
        "torch.utils._sympy.symbol.symbol_is_type",
    ),
)
if not TYPE_CHECKING:
    __getattr__ = PART.load


def fake_mode_of(values: Sequence[Any]) -> Any:
    """The mode that the fake tensors among `values` belong to, or None."""
    from torch._guards import detect_fake_mode

    return detect_fake_mode(list(values))


def without_guards(mode: FakeTensorMode | None) -> contextlib.AbstractContextManager[None]:
    """Inside the block, questions about symbolic sizes are answered by their hints, and add no guards."""
    env = mode.shape_env if mode is not None else None
    return env.suppress_guards() if env is not None else contextlib.nullcontext()


def unspecialized(value: Any) -> Any:
    """The expression of a symbolic number before the shape environment replaces anything in it."""
    return value.node._expr


def specialize(env: ShapeEnv, symbol: Any, value: Any) -> None:
    """Makes `symbol` stand for `value` from now on."""
    env._set_replacement(symbol, value, "specialized")


def forget_floats(env: ShapeEnv) -> None:
    """Removes the symbols of floats. Call it after a frame's guards were made: no graph contains these symbols, and
    AOTAutograd raises if it finds one in a graph's shape environment."""
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    values = env.backed_var_to_val
    for symbol in [symbol for symbol in values if symbol_is_type(symbol, SymT.FLOAT)]:
        del values[symbol]


@contextlib.contextmanager
def numbering(env: ShapeEnv, index: int) -> Iterator[None]:
    """Inside the block, the next new symbol has this number in its name. Inductor's cache keys contain the name."""
    with mock.patch.object(env, "_generate_unique_id", lambda source_name: index):
        yield
    env.unique_ids.add(index)


def mode_of(values: Iterable[Any]) -> FakeTensorMode | None:
    """The mode of the first fake tensor among `values`, or None."""
    from torch._subclasses.fake_tensor import FakeTensor

    return next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)


def forget_originals(mode: FakeTensorMode) -> None:
    """Drops a mode's weak references to the original tensors of its fake tensors.

    While these references exist, ``torch.utils.swap_tensors`` refuses the originals. Existing fake tensors do not
    change.
    """
    mode.fake_tensor_converter.meta_converter.describer.lookup_tensor.clear()
