# SPDX-License-Identifier: Apache-2.0
"""Torch's own samples of modules, operators, custom functions and higher-order operators, as modules that train.

They come from the databases that torch's own tests use (`torch.testing._internal`, part of its wheel). A sample is a
function that makes a module and the arguments of its calls. It makes the same ones each time.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

SEED = 7
EVERY = int(os.environ.get("AG_TEST_DATABASES_EVERY", "60"))
"""The tests run one of this number of operators or modules, with a few samples each. 1 runs all samples of all of them,
which takes hours."""
_FEW = 4
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Sample:
    name: str
    make: Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]


class Applied(nn.Module):
    """An operator whose floating-point inputs are parameters if the sample wants gradients for them."""

    def __init__(self, op: Callable[..., Any], args: Any, kwargs: Any) -> None:
        super().__init__()
        self._op = op
        leaves, self._structure = tree_flatten((args, kwargs))
        self._leaves: list[Any] = []
        for index, leaf in enumerate(leaves):
            is_trained = isinstance(leaf, torch.Tensor) and leaf.requires_grad
            if is_trained:
                self.register_parameter(f"p{index}", nn.Parameter(leaf.detach().clone()))
            self._leaves.append(f"p{index}" if is_trained else leaf)
            self._trained = {index for index, value in enumerate(self._leaves) if value == f"p{index}"}

    def forward(self, one: torch.Tensor) -> Any:
        leaves = [
            getattr(self, f"p{index}") * one.to(getattr(self, f"p{index}").dtype)
            if index in self._trained
            else leaf.clone()
            if isinstance(leaf, torch.Tensor)
            else leaf
            for index, leaf in enumerate(self._leaves)
        ]
        args, kwargs = tree_unflatten(leaves, self._structure)
        return self._op(*args, **kwargs)


class Scaled(nn.Module):
    """A module whose floating-point inputs are multiplied by a parameter. A module without parameters is not
    optimized."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.scale = module, nn.Parameter(torch.ones((), dtype=dtype))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        def scaled(leaf: Any) -> Any:
            is_number = isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.requires_grad
            return leaf * self.scale if is_number else leaf

        args, kwargs = tree_map(scaled, (args, kwargs))
        return self.module(*args, **kwargs)


def operator_samples(database: str, dtype: torch.dtype, first: int) -> Iterator[Sample]:
    """Samples of a database: "op_db", "autograd_function_db" or "hop_db". For "op_db", operator number `first` and
    every `EVERY`-th one after it."""
    for place, info in enumerate(_operators(database)):
        if database == "op_db" and place % EVERY != first % EVERY:
            continue
        if dtype not in info.supported_dtypes("cpu") or not info.supports_autograd:
            continue
        name = ".".join(part for part in (info.name, info.variant_test_name) if part)
        for number in _chosen(len(_inputs_of(database, place, dtype))):
            yield Sample(f"{name} {number}", _maker(database, place, dtype, number))


def _maker(database: str, place: int, dtype: torch.dtype, number: int) -> Callable[[], Any]:
    def make() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        sample = _inputs_of(database, place, dtype)[number]
        return (
            Applied(_operators(database)[place].op, (sample.input, *sample.args), sample.kwargs),
            (torch.ones(()),),
            {},
        )

    return make


@functools.lru_cache(maxsize=1)  # one operator at a time: torch seeds all generators for each sample, which is slow
def _inputs_of(database: str, place: int, dtype: torch.dtype) -> list[Any]:
    torch.manual_seed(SEED)
    try:
        return list(_operators(database)[place].sample_inputs(CPU, dtype, requires_grad=True))
    except Exception:
        return []  # torch has no samples of this kind on this machine


def _operators(database: str) -> list[Any]:
    if database == "op_db":
        from torch.testing._internal.common_methods_invocations import op_db

        return op_db
    if database == "hop_db":
        from torch.testing._internal.hop_db import hop_db

        return hop_db
    from torch.testing._internal.autograd_function_db import autograd_function_db

    return autograd_function_db


def module_samples(dtype: torch.dtype, first: int) -> Iterator[Sample]:
    """Samples of module number `first` and every `EVERY`-th one after it."""
    from torch.testing._internal.common_modules import module_db

    for place, info in enumerate(module_db):
        if dtype not in info.dtypes or place % EVERY != first % EVERY:
            continue
        inputs = lambda info=info: info.module_inputs_func(  # noqa: E731
            info, device="cpu", dtype=dtype, requires_grad=True, training=True
        )
        for number in _chosen(_count(inputs)):
            yield Sample(f"{info.module_cls.__name__} {number}", _module_maker(info, inputs, dtype, number))


def _module_maker(info: Any, inputs: Callable[[], Any], dtype: torch.dtype, number: int) -> Callable[[], Any]:
    def make() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        torch.manual_seed(SEED)
        chosen = list(inputs())[number]
        built = chosen.constructor_input
        module = info.module_cls(*built.args, **built.kwargs).to(dtype)
        return Scaled(module, dtype), chosen.forward_input.args, chosen.forward_input.kwargs

    return make


def _chosen(count: int) -> range:
    return range(0, count, 1 if EVERY == 1 else -(-count // _FEW) or 1)


def _count(samples: Callable[[], Any]) -> int:
    torch.manual_seed(SEED)
    try:
        return sum(1 for _ in samples())
    except Exception:
        return 0  # torch has no samples of this kind on this machine


def numbers(value: Any) -> list[torch.Tensor]:
    """Returns the tensors of a result that can be part of a loss."""
    found = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return [leaf for leaf in found if leaf.is_floating_point() or leaf.is_complex()]
