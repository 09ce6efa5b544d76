# SPDX-License-Identifier: Apache-2.0
"""Adasum: adds orthogonal gradients and averages parallel ones (arXiv 2006.02924).

Tensors are combined in pairs, then the results in pairs, so the number of ranks must be a power of two. Every rank
gathers the tensors of all ranks and combines them itself. Results are therefore equal at all ranks; a tensor briefly
takes its size times the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from agspeed.horovod.torch.handles import start, synchronize
from agspeed.horovod.torch.process_sets import ProcessSet, global_process_set
from agspeed.horovod.torch.wrapped import Wrapped
from agspeed.transfer.optimizer_state import parameters_of

__all__ = ["AdasumSteps", "combine", "start_adasum"]


def combine(rows: torch.Tensor) -> torch.Tensor:
    """The Adasum of the rows, computed in float64. The number of rows must be a power of two."""
    vectors = list(rows.double())
    while len(vectors) > 1:
        vectors = [_join(left, right) for left, right in zip(vectors[::2], vectors[1::2], strict=True)]
    joined: torch.Tensor = vectors[0].to(rows.dtype)
    return joined


def _join(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    product = _dot(left, right)
    norms = [_dot(each, each) for each in (left, right)]
    factors = [1 - product / (2 * norm) if norm > 0 else 1.0 for norm in norms]
    return factors[0] * left + factors[1] * right


def _dot(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A dot product whose order of summation depends on the length alone.

    The order of torch.dot depends on the processor and the number of threads, which may differ between ranks.
    """
    sums = left * right
    while len(sums) > 1:
        half = len(sums) // 2
        sums = torch.cat([sums[:half] + sums[half : 2 * half], sums[2 * half :]])
    return sums.sum()


def start_adasum(
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    name: str | None,
    process_set: ProcessSet,
    factors: tuple[float, float],
    is_list: bool = False,
) -> int:
    """Starts the Adasum of each tensor into its output. factors: scale the tensors before and after it.

    Returns: a handle, whose result is the list of outputs if `is_list`, else the only output.
    Raises: ValueError for tensors that are not floats, a number of ranks that is not a power of two, or a process set.
    """
    size = process_set.size()
    if process_set.process_set_id != global_process_set.process_set_id:
        raise ValueError("op=hvd.Adasum reduces over all ranks only: leave process_set out.")
    if size & (size - 1):
        raise ValueError(
            f"op=hvd.Adasum joins ranks in pairs of pairs, and {size} is no power of two: use hvd.Average."
        )
    if not all(tensor.is_floating_point() for tensor in inputs):
        raise ValueError("op=hvd.Adasum needs floats: use hvd.Sum for integers.")

    def write(gathered: list[torch.Tensor], _rows: list[int], _last: int) -> Any:
        for rows, output in zip(gathered, outputs, strict=True):
            output.detach().copy_((combine(rows * factors[0]) * factors[1]).reshape(output.shape))
        return list(outputs) if is_list else outputs[0]

    return start("allgather", name, process_set, [tensor.detach().reshape(1, -1) for tensor in inputs], [], write)


class AdasumSteps(Wrapped):
    """The class in front of the user's class for op=Adasum. It reduces the changes that a step makes, not gradients."""

    _adasum_compression: Any

    def synchronize(self) -> None:
        """Does nothing, because no operation is in flight between two steps."""

    def skip_synchronize(self) -> None:
        """Not supported with Adasum. Raises: AssertionError."""
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Does nothing, because gradients are summed over all backwards until step() is called."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes a step at this rank, and replaces its changes by the Adasum of all ranks' changes."""
        names, compression = self._parameter_names, self._adasum_compression
        parameters = parameters_of(self)
        names.follow(parameters)
        before = {parameter: parameter.detach().clone() for parameter in parameters if parameter.requires_grad}
        with torch.enable_grad():
            result = super().step(closure) if closure is not None else super().step()
        handles = []
        for parameter, start_value in before.items():
            tensor, ctx = compression.compress((parameter - start_value).contiguous())
            handle = start_adasum([tensor], [tensor], names[parameter], global_process_set, (1.0, 1.0))
            handles.append((parameter, handle, ctx))
        for parameter, handle, ctx in handles:
            parameter.copy_(before[parameter] + compression.decompress(synchronize(handle), ctx))
        return result
