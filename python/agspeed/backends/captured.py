# SPDX-License-Identifier: Apache-2.0
"""CapturedDirection: one direction of a compiled region as a CUDA graph, launched in one call.

    static inputs        parameters, and tensors that the forward's graph saved for the backward: used in place. Each
                         call compares their addresses. If one has moved, the graph is captured again.
    other inputs         copied into the graph's own inputs.
    results users keep   copied out of the graph's memory, so that outputs and gradients are never overwritten.
    saved tensors        stay in the graph's memory until the backward has released them. Until then, calls of the
                         forward run without the graph (for example a second forward before the first backward).

Random numbers: a graph draws from torch's default generator at its offset at the time of the replay, and advances it as
eager does. A graph has fixed sizes: there is one for each set of symbolic sizes, up to a limit. Inside another capture,
the code runs without its own graph and becomes part of that capture.

Each direction has its own memory pool, so that graphs may be replayed in any order. Threads: one call at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from agspeed.backends.joint import BoxedRunner
from agspeed.devices.meter import GRAPHS
from agspeed.log import logger
from agspeed.torch_compat import memory

_MAX_CAPTURES = 24
"""The most captures of one direction, including captures for the gate's calls with copied parameters. After that, calls
that fit no graph run without one."""
_MAX_GRAPHS = 4
"""The most sets of symbolic sizes that have a graph at the same time."""


class Graph(Protocol):
    """Captured work. `held_bytes`: the bytes of its pool beyond the tensors that are alive."""

    held_bytes: int

    def replay(self) -> None: ...


class GraphMaker(Protocol):
    """Captures work with CUDA, or with a fake in tests."""

    def is_capturing(self) -> bool:
        """Returns whether the calling thread's stream is being captured."""
        ...

    def capture(self, work: Callable[[], Sequence[Any]]) -> tuple[Graph, Sequence[Any]]:
        """Warms `work` up and captures it. Returns: the graph, and the results that each replay overwrites. Restores
        the random generators. Raises: RuntimeError if it cannot be captured."""
        ...


@dataclass
class _Entry:
    """One captured graph. Positions refer to the direction's inputs and results."""

    graph: Graph
    statics: list[int]
    addresses: list[int]
    copied: list[int]
    own: list[torch.Tensor]
    """The graph's own inputs, into which the other inputs are copied."""
    results: list[Any]
    from_input: dict[int, int]
    """{position of a result that is an input: position of the input}."""


class CapturedDirection:
    """A `BoxedRunner` that runs one direction as a CUDA graph.

    Args:
        run: the direction's code, a pure function of its inputs except for random numbers.
        first_saved: the position of the first result that is saved for the backward. Earlier results belong to the
            caller. None: all results belong to the caller.
        num_mutated: the number of leading results that the caller copies into inputs at once. They are not copied out.
        static: returns the tensor to use for an argument that keeps its memory from call to call; None for others.
    """

    def __init__(
        self,
        run: BoxedRunner,
        maker: GraphMaker,
        *,
        first_saved: int | None = None,
        num_mutated: int = 0,
        static: Callable[[torch.Tensor], torch.Tensor | None],
    ) -> None:
        self._run, self._maker, self._static = run, maker, static
        self._first_saved, self._num_mutated = first_saved, num_mutated
        self._entries: dict[tuple[Any, ...], _Entry] = {}
        self._owned: dict[int, torch.Tensor] = {}
        self._in_use: memory.StorageWeakRef | None = None
        self._num_captures = 0
        self._boxed_call = True

    def owned(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns the saved result of one of this direction's graphs that has `tensor`'s memory, or None."""
        found = self._owned.get(tensor.data_ptr())
        is_same = found is not None and found.shape == tensor.shape and found.stride() == tensor.stride()
        return found if is_same else None

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        values = list(inputs)
        inputs.clear()
        is_busy = self._in_use is not None and not self._in_use.expired()
        if is_busy or self._maker.is_capturing():
            return self._run(values)
        key = tuple(value for value in values if not isinstance(value, torch.Tensor))
        entry = self._entries.get(key)
        if entry is None or not _fits(entry, values):
            entry = self._captured(key, values, entry)
        if entry is None:
            return self._run(values)
        return self._replayed(entry, values)

    def _captured(self, key: tuple[Any, ...], values: list[Any], old: _Entry | None) -> _Entry | None:
        """Captures a graph for these inputs. Returns None if they must run without a graph.

        Raises: RuntimeError if the very first capture fails, which makes the candidate useless.
        """
        tensors = [index for index, value in enumerate(values) if isinstance(value, torch.Tensor)]
        found = {index: self._static(values[index]) for index in tensors}
        statics = {index: tensor for index, tensor in found.items() if tensor is not None}
        if old is not None and list(statics) != old.statics:
            return None  # a forward that ran without a graph saved these inputs
        if self._num_captures >= _MAX_CAPTURES or (old is None and len(self._entries) >= _MAX_GRAPHS):
            return None
        self._num_captures += 1
        self._entries.pop(key, None)
        try:
            entry = self._capture(values, tensors, statics)
        except RuntimeError as error:
            if self._num_captures == 1:
                raise RuntimeError(f"its CUDA graph cannot be captured: {error}") from error
            logger.debug("a direction runs without its CUDA graph", exc_info=True)
            self._num_captures = _MAX_CAPTURES
            return None
        self._entries[key] = entry
        if self._first_saved is not None:
            saved = [value for value in entry.results[self._first_saved :] if isinstance(value, torch.Tensor)]
            self._owned |= {value.data_ptr(): value for value in saved}
        return entry

    def _capture(self, values: list[Any], tensors: list[int], statics: dict[int, torch.Tensor]) -> _Entry:
        copied = [index for index in tensors if index not in statics]
        with torch.no_grad():
            own = [_copy(values[index]) for index in copied]
        passed = list(values)
        for index, tensor in (*statics.items(), *zip(copied, own, strict=True)):
            passed[index] = tensor
        graph, results = self._maker.capture(lambda: self._run(list(passed)))
        position = {id(passed[index]): index for index in tensors}
        from_input = {at: position[id(value)] for at, value in enumerate(results) if id(value) in position}
        addresses = [values[index].data_ptr() for index in statics]
        return _Entry(graph, list(statics), addresses, copied, own, list(results), from_input)

    def _replayed(self, entry: _Entry, values: list[Any]) -> list[Any]:
        with torch.no_grad():
            for tensor, index in zip(entry.own, entry.copied, strict=True):
                tensor.copy_(values[index])
            entry.graph.replay()
            GRAPHS.replayed(self, entry.graph.held_bytes)
            results = list(entry.results)
            end = len(results) if self._first_saved is None else self._first_saved
            for at in range(self._num_mutated, end):
                if isinstance(results[at], torch.Tensor) and at not in entry.from_input:
                    results[at] = _copy(results[at])
        for at, index in entry.from_input.items():
            results[at] = values[index]
        if self._first_saved is not None:
            self._watch(entry, results)
        return results

    def _watch(self, entry: _Entry, results: list[Any]) -> None:
        """Replaces one saved tensor by a tensor with the same memory and its own storage object. When the backward has
        released that storage, the graph is free again.
        """
        assert self._first_saved is not None
        for at in range(self._first_saved, len(results)):
            if isinstance(results[at], torch.Tensor) and at not in entry.from_input and results[at].numel() > 0:
                results[at] = memory.with_own_storage(results[at])
                self._in_use = memory.StorageWeakRef(results[at].untyped_storage())
                return
        self._in_use = None


def _fits(entry: _Entry, values: list[Any]) -> bool:
    """Returns whether the entry's graph can run with `values`."""
    is_in_place = [values[index].data_ptr() for index in entry.statics] == entry.addresses
    pairs = zip(entry.own, entry.copied, strict=True)
    return is_in_place and all(
        tensor.shape == values[index].shape and tensor.dtype == values[index].dtype for tensor, index in pairs
    )


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a dense copy, with the same strides if they are dense."""
    return tensor.detach().clone(memory_format=torch.preserve_format)


class CudaGraphMaker:
    """Makes torch's CUDA graphs on the current device."""

    _WARM_UPS = 2

    def is_capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def capture(self, work: Callable[[], Sequence[Any]]) -> tuple[Graph, Sequence[Any]]:
        device = torch.device("cuda", torch.cuda.current_device())
        before = torch.cuda.get_rng_state(device)
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(self._WARM_UPS):
                work()
        torch.cuda.current_stream(device).wait_stream(side)
        torch.cuda.set_rng_state(before, device)
        graph: Any = torch.cuda.CUDAGraph()
        reserved = torch.cuda.memory_reserved(device)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            allocated = torch.cuda.memory_allocated(device)
            results = work()
            kept = torch.cuda.memory_allocated(device) - allocated
        return _CudaGraph(graph, max(0, torch.cuda.memory_reserved(device) - reserved - kept)), results


class _CudaGraph:
    """A `Graph` of CUDA."""

    def __init__(self, graph: Any, held_bytes: int) -> None:
        self.replay = graph.replay
        self.held_bytes = held_bytes
