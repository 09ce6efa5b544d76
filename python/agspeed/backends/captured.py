# SPDX-License-Identifier: Apache-2.0
"""CapturedDirection: one direction of a compiled region as a CUDA graph, launched in one call.

    static inputs        parameters, and what the forward's graph left for the backward: used where they are. Their
                         addresses are compared at each call; where one moved, the graph is captured anew.
    other inputs         copied into the graph's own inputs.
    results users keep   copied out of the graph's memory: outputs and gradients that live on are never overwritten.
    saved tensors        stay in the graph's memory until the backward has let go of them; while it has not, calls of
                         the forward run without the graph (a second forward before the first one's backward, say).

Random numbers: a graph draws from torch's default generator at the offset that it has at the replay, and moves it on as
eager does. A graph has its sizes baked in: there is one for each set of symbolic sizes, a bounded number in all.
Inside somebody else's capture the code runs without a graph of its own, and becomes part of theirs.

Each direction has a memory pool of its own, so that graphs may be replayed in any order. Threads: one call at a time.
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
"""Of one direction, the gate's calls on copies of the parameters included; then it runs without a graph."""
_MAX_GRAPHS = 4
"""Sets of symbolic sizes that have a graph at the same time."""


class Graph(Protocol):
    """Captured work. `held_bytes`: what its pool takes beyond the tensors that are alive."""

    held_bytes: int

    def replay(self) -> None: ...


class GraphMaker(Protocol):
    """Captures work: CUDA's, or a fake."""

    def is_capturing(self) -> bool:
        """Somebody captures the calling thread's stream."""
        ...

    def capture(self, work: Callable[[], Sequence[Any]]) -> tuple[Graph, Sequence[Any]]:
        """`work` as a graph, warmed up, with the results that each replay writes anew. Runs nothing that counts: random
        generators are afterwards where they were. Raises: RuntimeError where it cannot be captured."""
        ...


@dataclass
class _Entry:
    """One captured graph. Positions are those of the direction's inputs and results."""

    graph: Graph
    statics: list[int]
    addresses: list[int]
    copied: list[int]
    own: list[torch.Tensor]
    """What the copied inputs are copied into."""
    results: list[Any]
    from_input: dict[int, int]
    """Results that are an input, and which."""


class CapturedDirection:
    """See the module's text; a `BoxedRunner`.

    Args:
        run: the direction's code, a pure function of its inputs but for random numbers.
        first_saved: the position of the first result that is saved for the backward; those before it are the
            caller's. None: all are.
        num_mutated: leading results that the caller copies into inputs at once, and that need not be copied out.
        static: the tensor that stands for an argument which stays where it is from call to call; None for others.
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
        """The saved result of a graph of this direction that `tensor` is; None where it is none."""
        found = self._owned.get(tensor.data_ptr())
        is_same = found is not None and found.shape == tensor.shape and found.stride() == tensor.stride()
        return found if is_same else None

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        values = list(inputs)
        inputs.clear()
        is_busy = self._in_use is not None and not self._in_use.expired()  # type: ignore[no-untyped-call]
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
        """A graph for these inputs; None where they shall run without one.

        Raises: RuntimeError where the first capture of all fails: the candidate is of no use then.
        """
        tensors = [index for index, value in enumerate(values) if isinstance(value, torch.Tensor)]
        found = {index: self._static(values[index]) for index in tensors}
        statics = {index: tensor for index, tensor in found.items() if tensor is not None}
        if old is not None and list(statics) != old.statics:
            return None  # a forward without graph saved these
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
        """Puts in place of one saved tensor the same memory behind a storage of its own, which is gone once the
        backward has let go of it.
        """
        assert self._first_saved is not None
        for at in range(self._first_saved, len(results)):
            if isinstance(results[at], torch.Tensor) and at not in entry.from_input and results[at].numel() > 0:
                results[at] = memory.with_own_storage(results[at])
                self._in_use = memory.StorageWeakRef(results[at].untyped_storage())  # type: ignore[no-untyped-call]
                return
        self._in_use = None


def _fits(entry: _Entry, values: list[Any]) -> bool:
    """The entry's graph computes what `values` ask for."""
    is_in_place = [values[index].data_ptr() for index in entry.statics] == entry.addresses
    pairs = zip(entry.own, entry.copied, strict=True)
    return is_in_place and all(
        tensor.shape == values[index].shape and tensor.dtype == values[index].dtype for tensor, index in pairs
    )


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A dense copy with the same strides where those are dense."""
    return tensor.detach().clone(memory_format=torch.preserve_format)


class CudaGraphMaker:
    """CUDA graphs of torch, on the current device."""

    _WARM_UPS = 2

    def is_capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def capture(self, work: Callable[[], Sequence[Any]]) -> tuple[Graph, Sequence[Any]]:
        device = torch.device("cuda", torch.cuda.current_device())
        before = torch.cuda.get_rng_state(device)
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
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
    """See `Graph`."""

    def __init__(self, graph: Any, held_bytes: int) -> None:
        self.replay = graph.replay
        self.held_bytes = held_bytes
