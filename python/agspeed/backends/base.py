# SPDX-License-Identifier: Apache-2.0
"""The interface of a candidate: one way to run a captured region.

A candidate turns a region's graph into a callable with the graph's own calling convention. The callable takes flat
arguments (tensors, parameters, buffers, symbolic integers) and returns a sequence of differentiable outputs. It also
applies the graph's input mutations. A candidate compiles on the thread that trains, or on the main thread of the
compile child, under the ambient modes (gradients, autocast) in which the region was captured.

Built-in candidates are the `Candidate` subclasses in the modules of this package; a module may have several. Other
packages add candidates through the entry point group ``agspeed.backends``: an entry point that loads to a `Candidate`
subclass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from torch import fx

from agspeed.config import Settings

Result = TypeVar("Result")
Runner = Callable[..., Sequence[Any]]
"""A compiled region: ``runner(*flat_args) -> outputs``."""


@dataclass(frozen=True)
class CompileOptions:
    """The options of a compile. The tuning database's key contains `num_threads`, `numerics` and `dynamic`."""

    num_threads: int
    numerics: str = "standard"
    cache_dir: str = ""
    dynamic: bool | None = None
    stage_bytes: int = 0
    """A compiled backward returns gradients in stages of at least this many bytes, while it still computes; 0: all
    gradients at its end."""
    dump_dir: str = ""
    """An absolute path: the native compiler writes all stages of each graph into this folder. "": it writes none."""
    perf_map: bool = False
    """True to name native kernels for `perf`."""
    is_replicated: bool = False
    """True if other ranks may hold the same parameters: a graph that changes them must then keep eager's bits."""
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings, num_threads: int) -> CompileOptions:
        """Returns the options that follow from a user's settings."""
        return cls(
            num_threads,
            settings.numerics,
            str(settings.cache_dir),
            settings.dynamic,
            dump_dir=str(settings.dump.absolute()) if settings.dump is not None else "",
            perf_map=settings.perf_map,
        )


class Candidate(ABC):
    """One way to run a region. Stateless: one instance serves every region of the process."""

    name: ClassVar[str]
    """The unique name in ``backends=[...]`` and in reports."""

    in_process: ClassVar[bool] = False
    """True if `compile` may run in the training process at once. Otherwise the region is first compiled, gated and
    tried in a child process, so that a crash, a hang or an ``exit`` does not reach training."""

    exact: ClassVar[bool] = False
    """True if results are expected to be bit-equal to eager (the gate still checks)."""

    needs_stages: ClassVar[bool] = False
    """True for candidates that are useful only if gradients leave in stages (`CompileOptions.stage_bytes`)."""

    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    """The types of devices on which the candidate is useful."""

    default: ClassVar[bool] = True
    """False for candidates that run only if ``backends=`` names them."""

    def unavailable(self) -> str | None:
        """Returns why this candidate cannot be used on this machine, or None. Cheap; called once per process."""
        return None

    def skip_reason(self, gm: fx.GraphModule, options: CompileOptions) -> str | None:
        """Returns why not to try this graph (unsupported, or the same code as another candidate), or None."""
        return None

    @abstractmethod
    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions) -> Runner:
        """Compiles a private copy of the graph.

        Args:
            gm: torch-level graph as Dynamo captured it; the callee owns this copy and may change it.
            example_inputs: one FakeTensor, SymInt or constant per placeholder, in order.
            options: see `CompileOptions`.

        Raises:
            UnsupportedError: this candidate cannot compile the graph; the region stays on eager.
            Exception: any other error counts as a failure of the candidate. It is reported and never reaches the user.
        """

    def compile_in_parts(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
    ) -> Generator[None, None, Runner]:
        """Like `compile`, as a generator that yields between parts, so that training steps can run: for compiles that
        take several seconds.

        Each part runs under the ambient modes of the capture. A part restores all process settings before it ends.
        """
        yield from ()
        return self.compile(gm, example_inputs, options)

    def fingerprint(self) -> dict[str, str]:
        """Returns the versions of the tools that generate the code; they are part of the tuning database's key."""
        return {}


def to_end(parts: Generator[None, None, Result]) -> Result:
    """Runs all parts without a pause and returns the result."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            result: Result = end.value
            return result
