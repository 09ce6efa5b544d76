# SPDX-License-Identifier: Apache-2.0
"""The candidate seam: one way to run a captured region.

A candidate turns a region's graph into a callable with the graph's own calling convention: flat arguments in
(tensors, parameters, buffers, symbolic integers), a sequence of outputs back, differentiable, with the graph's input
mutations applied. It may assume nothing about threads or processes: ``compile`` runs on the main thread of a training
process or of a child process, under the ambient modes (gradients, autocast) the region was captured in.

Built-in candidates are one module each in this package. Other packages add theirs through the entry point group
``agspeed.backends``: an entry point that loads to a `Candidate` subclass.
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
    """What a candidate may need to know. Everything here is part of the tuning database's key."""

    num_threads: int
    numerics: str = "standard"
    cache_dir: str = ""
    dynamic: bool | None = None
    stage_bytes: int = 0
    """Gradients leave a compiled backward in stages of at least so many bytes, while it still computes; 0: all at its
    end."""
    is_replicated: bool = False
    """Other ranks may hold the same parameters: a graph that changes them keeps eager's bits."""
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings, num_threads: int) -> CompileOptions:
        """What a user's settings say."""
        return cls(num_threads, settings.numerics, str(settings.cache_dir), settings.dynamic)


class Candidate(ABC):
    """One way to run a region. Stateless: one instance serves every region of the process."""

    name: ClassVar[str]
    """Unique name, as in ``backends=[...]`` and in reports."""

    in_process: ClassVar[bool] = False
    """True when `compile` may run in the training process at once. Otherwise the region is first compiled, gated and
    tried in a child process, so that a crash, a hang or an ``exit`` there does not reach training."""

    exact: ClassVar[bool] = False
    """True when results are expected to be bit-equal to eager (the gate still checks)."""

    needs_stages: ClassVar[bool] = False
    """True for candidates that are of use only where gradients leave in stages: `CompileOptions.stage_bytes`."""

    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    """Types of devices that it is of use on."""

    default: ClassVar[bool] = True
    """False for candidates that only run when named in ``backends=``."""

    def unavailable(self) -> str | None:
        """The reason why this candidate cannot be used on this machine, or None. Cheap; called once per process."""
        return None

    def skip_reason(self, gm: fx.GraphModule, options: CompileOptions) -> str | None:
        """The reason not to try this graph (unsupported, or the same code as another candidate), or None."""
        return None

    @abstractmethod
    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions) -> Runner:
        """Compiles a private copy of the graph.

        Args:
            gm: torch-level graph as Dynamo captured it; the callee owns this copy and may change it.
            example_inputs: one FakeTensor, SymInt or constant per placeholder, in order.
            options: see `CompileOptions`.

        Raises:
            UnsupportedError: the graph cannot be compiled by this candidate; the region stays on eager.
            Exception: anything else counts as a failure of the candidate and is reported, never raised to the user.
        """

    def compile_in_parts(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
    ) -> Generator[None, None, Runner]:
        """`compile` with pauses, during which training steps may run: for compiles of several seconds.

        Each part runs under the ambient modes of the capture; a part changes no setting of the process beyond its end.
        """
        yield from ()
        return self.compile(gm, example_inputs, options)

    def fingerprint(self) -> dict[str, str]:
        """Versions of what generates the code; part of the tuning database's key."""
        return {}


def to_end(parts: Generator[None, None, Result]) -> Result:
    """Runs all parts without a pause."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
