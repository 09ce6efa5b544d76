# SPDX-License-Identifier: Apache-2.0
"""AOTAutograd: forward and backward as ATen graphs, their partition, and metadata of a graph's inputs and outputs.

Without this part, only eager and the captured graph can run, so everything stays eager. All needs exist since torch
2.11. Threads: as for AOTAutograd itself, on the thread that compiles.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agspeed.torch_compat.part import Part

if TYPE_CHECKING:
    from torch._functorch._aot_autograd.schemas import OutputType, ViewAndMutationMeta
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition

__all__ = [
    "OutputType",
    "ViewAndMutationMeta",
    "aot_module_simplified",
    "default_partition",
    "min_cut_rematerialization_partition",
]

_META = "torch._functorch._aot_autograd.schemas.ViewAndMutationMeta"
_INPUT = "torch._functorch._aot_autograd.schemas.InputAliasInfo"
_OUTPUT = "torch._functorch._aot_autograd.schemas.OutputAliasInfo"
_TYPE = "torch._functorch._aot_autograd.schemas.OutputType"
PART = Part(
    "aot_autograd",
    __name__,
    exports=(
        _TYPE,
        _META,
        "torch._functorch.aot_autograd.aot_module_simplified",
        "torch._functorch.partitioners.default_partition",
        "torch._functorch.partitioners.min_cut_rematerialization_partition",
    ),
    needs=(
        "torch._functorch.aot_autograd.aot_module_simplified"
        "(fw_compiler, bw_compiler, inference_compiler, partition_fn, decompositions)",
        "torch._functorch.config.donated_buffer",
        "torch._functorch.config.enable_autograd_cache",
        "torch._functorch.config.force_non_lazy_backward_lowering",
        "torch._functorch.config.patch",
        *(
            f"{_META}.{name}"
            for name in (
                "bw_donated_idxs",
                "input_info",
                "mutated_graph_handled_indices_seen_by_autograd",
                "mutated_inp_runtime_indices",
                "num_intermediate_bases",
                "num_opaque_objects_saved_for_bw",
                "num_symints_saved_for_bw",
                "output_info",
                "tokens",
            )
        ),
        *(f"{_INPUT}.{name}" for name in ("mutates_data", "mutates_metadata", "mutates_storage_metadata")),
        *(f"{_OUTPUT}.{name}" for name in ("base_idx", "output_type", "raw_type", "requires_grad")),
        *(
            f"{_TYPE}.{name}"
            for name in ("alias_of_input", "custom_function_view", "is_input", "non_alias", "unsafe_view_alias")
        ),
    ),
)
if not TYPE_CHECKING:
    __getattr__ = PART.load


def settings(**changed: Any) -> contextlib.AbstractContextManager[Any]:
    """Inside the block, AOTAutograd has these settings."""
    from torch._functorch import config

    patch: contextlib.AbstractContextManager[Any] = config.patch(**changed)
    return patch


def mark_boxed(run: Callable[..., Any]) -> None:
    """Marks a compiled graph as a function that takes its arguments in one list (attribute `_boxed_call`).

    Without the mark, AOTAutograd calls a graph that has no backward with separate arguments.
    """
    marked: Any = run
    marked._boxed_call = True
