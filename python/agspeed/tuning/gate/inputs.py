# SPDX-License-Identifier: Apache-2.0
"""Makes private copies of a region's inputs, so that checking a region does not change the user's tensors.

A copy keeps everything that a program can observe: sizes, strides (overlapping ones too), shared memory, identity,
the Parameter class and gradient flags. Copies can be promoted: floating point memory becomes float64.
Stateless apart from the copies themselves; one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from agspeed.torch_compat.modules import storage_of

WIDER: dict[torch.dtype, torch.dtype] = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Change = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""``change(flat_copy, a_tensor_in_it)`` returns the memory to use instead of the plain copy."""


class InputCopies:
    """One set of copied inputs for one run.

    values: the arguments for the region.
    leaves: for each input, the tensor to differentiate with respect to, or None.
    """

    def __init__(self, inputs: Sequence[Any], *, promote: bool = False, change: Change | None = None) -> None:
        self._originals = list(inputs)
        self._change = change
        self._promote = promote
        self._memory: dict[int, tuple[torch.Tensor, int]] = {}
        self._by_identity: dict[int, tuple[torch.Tensor | None, torch.Tensor]] = {}
        self._shared = _shared_storages(inputs)
        self.leaves: list[torch.Tensor | None] = []
        self.values: list[Any] = []
        with torch.no_grad():
            self._copy_storages()
        for value in inputs:
            leaf, passed = self._copy(value) if isinstance(value, torch.Tensor) else (None, value)
            self.leaves.append(leaf)
            self.values.append(passed)

    def changed(self) -> dict[int, torch.Tensor]:
        """Returns {input index: copy} for inputs whose bits have changed since the run started."""
        found = {}
        for index, (before, after) in enumerate(zip(self._originals, self.values, strict=True)):
            if isinstance(after, torch.Tensor) and not same_bits(
                _as_type(before.detach(), after.dtype), after.detach()
            ):
                found[index] = after.detach().clone()
        return found

    def storage_of(self, tensor: torch.Tensor) -> int | None:
        """Returns the index of the first input that shares memory with `tensor`, or None."""
        pointer = tensor.untyped_storage().data_ptr()
        for index, value in enumerate(self.values):
            if pointer and isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() == pointer:
                return index
        return None

    def _copy_storages(self) -> None:
        """Copies, once for every storage, the span that the inputs cover."""
        spans: dict[int, list[torch.Tensor]] = {}
        for value in self._originals:
            if isinstance(value, torch.Tensor):
                if value.layout is not torch.strided:
                    raise ValueError(f"an input has layout {value.layout}; only dense inputs can be checked")
                spans.setdefault(_storage(value), []).append(value)
        for key, tensors in spans.items():
            first = tensors[0]
            if any(tensor.dtype != first.dtype for tensor in tensors):
                raise ValueError("two inputs see the same memory as different element types")
            low = min(int(tensor.storage_offset()) for tensor in tensors)
            high = max(int(tensor.storage_offset()) + _extent(tensor) for tensor in tensors)
            flat = first.detach().as_strided((max(high - low, 0),), (1,), low).clone()
            flat = _as_type(flat, WIDER.get(flat.dtype, flat.dtype) if self._promote else flat.dtype)
            self._memory[key] = (self._change(flat, first) if self._change else flat), low

    def _copy(self, value: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        if id(value) in self._by_identity:
            return self._by_identity[id(value)]
        flat, low = self._memory[_storage(value)]
        with torch.no_grad():
            copy = torch.empty(0, dtype=flat.dtype, device=flat.device)
            copy.set_(flat.untyped_storage(), value.storage_offset() - low, value.shape, value.stride())
        if isinstance(value, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, requires_grad=value.requires_grad)
        elif value.requires_grad:
            copy.requires_grad_()
        passed = copy
        if value.requires_grad and not isinstance(value, torch.nn.Parameter) and _storage(value) not in self._shared:
            # An activation is not a leaf, so the region may change it in place: pass a clone of the leaf.
            passed = copy.clone() if copy.clone().stride() == copy.stride() else copy
        pair = (copy if value.requires_grad else None), passed
        self._by_identity[id(value)] = pair
        return pair


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether element type, shape, layout and bits are equal. A NaN equals itself; 0.0 and -0.0 differ."""
    if a.dtype != b.dtype or a.shape != b.shape or a.layout != b.layout:
        return False
    return torch.equal(_bits(a.to_dense()), _bits(b.to_dense()))


def nbytes(values: Sequence[object]) -> int:
    """Returns the bytes of the distinct tensors in `values`."""
    tensors = {id(value): value for value in values if isinstance(value, torch.Tensor)}
    return sum(_extent(tensor) * tensor.itemsize for tensor in tensors.values())


def other_data(flat: torch.Tensor, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Returns different valid data: floats are scaled element by element and keep their signs; parameters and other
    types stay as they are."""
    if isinstance(like, torch.nn.Parameter) or not (flat.is_floating_point() or flat.is_complex()):
        return flat
    return flat * (torch.rand(flat.shape, generator=generator) + 0.5).to(device=flat.device, dtype=flat.dtype)


def finest_eps(inputs: Sequence[object]) -> float:
    """Returns eps of the most precise floating point type among the inputs."""
    kinds = {value.dtype for value in inputs if isinstance(value, torch.Tensor)}
    return min((torch.finfo(kind).eps for kind in kinds if kind.is_floating_point or kind.is_complex), default=0.0)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor if tensor.dtype is torch.bool else tensor.view(_INTEGER_OF_SIZE[tensor.itemsize])


def _as_type(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def _storage(tensor: torch.Tensor) -> int:
    return storage_of(tensor)


def _extent(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _shared_storages(inputs: Sequence[object]) -> set[int]:
    distinct = {id(value): value for value in inputs if isinstance(value, torch.Tensor)}
    keys = [_storage(value) for value in distinct.values()]
    return {key for key in keys if keys.count(key) > 1}
