# SPDX-License-Identifier: Apache-2.0
"""The graphs that torch.compile captures of a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_module_simplified

from agspeed.torch_compat.checkpoint import with_plain_parts

Captured = list[tuple[fx.GraphModule, list[Any]]]


def capture(function: Callable[..., Any], *args: Any, dynamic: bool | None = None) -> Captured:
    """Returns the torch-level graphs of one call."""
    torch._dynamo.reset()
    found: Captured = []

    def backend(gm: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        found.append((with_plain_parts(gm), list(examples)))
        return gm.forward

    torch.compile(function, backend=backend, dynamic=dynamic)(*args)
    return found


def capture_aten(function: Callable[..., Any], *args: Any, dynamic: bool | None = None) -> list[fx.GraphModule]:
    """Returns the ATen graphs of one call and its backward."""
    torch._dynamo.reset()
    found: list[fx.GraphModule] = []

    def compiler(gm: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        found.append(gm)

        def run(arguments: list[Any]) -> Any:
            return gm(*arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def backend(gm: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        return aot_module_simplified(gm, examples, fw_compiler=compiler, bw_compiler=compiler)  # type: ignore[no-any-return]

    result = torch.compile(function, backend=backend, dynamic=dynamic)(*args)
    result.sum().backward()
    return found
