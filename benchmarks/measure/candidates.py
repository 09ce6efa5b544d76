# SPDX-License-Identifier: Apache-2.0
"""The ways to run a workload that the runner can time: one table, one row each.

A candidate prepares the session's modules in place, so that the training loop stays the same code. `settle` then runs
real steps until the candidate is in its steady state. Preparing changes process-wide state of torch (compile caches):
candidates of one process share it as they would in a user's program. The table itself is readable without torch.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from benchmarks.workloads.base import Memory, Training

_MOST_STEPS_OF_OPTIMIZERS = 400


@dataclass
class Settled:
    """How a candidate reached its steady state. The dicts come from agspeed and are empty for fixed candidates."""

    seconds: float
    steps: int
    chosen: dict[str, str] = field(default_factory=dict)
    """The decision for each module."""
    lost: dict[str, list[str]] = field(default_factory=dict)
    """By backend: the reasons why it cannot run a region, one for each region."""
    code: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Candidate:
    """`prepare(module, cache_dir)` works in place. `tunes` is True if agspeed decides while steps run. With
    `fuses_optimizers`, optimizers run torch's fused step if they have one."""

    name: str
    prepare: Callable[[nn.Module, Path], None]
    tunes: bool = False
    retains_memory: bool = False
    fuses_optimizers: bool = False

    @property
    def memory(self) -> Memory:
        """The allocator of its timed steps."""
        return "retained" if self.retains_memory else "chosen" if self.tunes else "torch"


def _compiled(**arguments: Any) -> Callable[[nn.Module, Path], None]:
    """`module.compile`, except for containers of torch itself, such as Sequential.

    Dynamo skips frames in torch's own files, so `module.compile` leaves these containers eager. `torch.compile(module)`
    wraps them in a frame that Dynamo traces; this function does the same.
    """

    def prepare(module: nn.Module, cache_dir: Path) -> None:
        import torch

        if not type(module).__module__.startswith("torch.nn."):
            module.compile(**arguments)
            return
        module._compiled_call_impl = torch.compile(
            lambda *args, **kwargs: module._call_impl(*args, **kwargs), **arguments
        )

    return prepare


def _optimized(**arguments: Any) -> Callable[[nn.Module, Path], None]:
    def prepare(module: nn.Module, cache_dir: Path) -> None:
        import agspeed

        agspeed.optimize(module, cache_dir=str(cache_dir), **arguments)

    return prepare


def _staged(**arguments: Any) -> Callable[[nn.Module, Path], None]:
    """Like `_optimized`, but gradients leave in as many stages as they can, although no wrapper uses them early."""

    def prepare(module: nn.Module, cache_dir: Path) -> None:
        from agspeed.frontend.session import session_of

        _optimized(**arguments)(module, cache_dir)
        session = session_of(module)
        assert session is not None
        session.options = dataclasses.replace(session.options, stage_bytes=1)

    return prepare


def _eager(module: nn.Module, cache_dir: Path) -> None:
    pass


CANDIDATES: dict[str, Candidate] = {
    row.name: row
    for row in (
        Candidate("eager", _eager),
        Candidate("eager-retained", _eager, retains_memory=True),
        Candidate("aot_eager", _compiled(backend="aot_eager")),
        Candidate("inductor", _compiled()),
        Candidate("inductor-max-autotune", _compiled(mode="max-autotune")),
        Candidate("agspeed", _optimized(mode="max"), tunes=True),
        Candidate("agspeed-auto", _optimized(mode="auto"), tunes=True),
        Candidate("agspeed-eager", _optimized(mode="max", backends=["eager"]), tunes=True),
        Candidate("agspeed-eager-alone", _optimized(mode="deterministic", backends=["eager"]), tunes=True),
        Candidate("agspeed-native", _optimized(mode="deterministic", backends=["native"]), tunes=True),
        Candidate(
            "agspeed-native-channels-last",
            _optimized(mode="deterministic", backends=["native-channels-last"]),
            tunes=True,
        ),
        Candidate("agspeed-native-staged", _staged(mode="deterministic", backends=["native"]), tunes=True),
        Candidate("agspeed-aot", _optimized(mode="deterministic", backends=["aot"]), tunes=True),
        Candidate("agspeed-aot-staged", _staged(mode="deterministic", backends=["aot"]), tunes=True),
        Candidate("eager-levelled", _eager, retains_memory=True, fuses_optimizers=True),
        Candidate("inductor-levelled", _compiled(), retains_memory=True, fuses_optimizers=True),
        Candidate(
            "inductor-max-autotune-levelled",
            _compiled(mode="max-autotune"),
            retains_memory=True,
            fuses_optimizers=True,
        ),
    )
}
ORACLE = ("eager", "inductor", "inductor-max-autotune")
LEVELLED = tuple(f"{name}-levelled" for name in ORACLE)
"""The oracle's candidates with what agspeed may add beside a compiler: its allocator and torch's fused optimizers."""


def find(name: str) -> Candidate:
    """Returns the candidate called `name`. Raises ValueError if there is none."""
    if name not in CANDIDATES:
        raise ValueError(f"unknown candidate {name!r}; known: {', '.join(CANDIDATES)}")
    return CANDIDATES[name]


@contextmanager
def running(candidate: Candidate, training: Training, cache_dir: Path, seconds: float) -> Iterator[Settled]:
    """Yields when the session is in the candidate's steady state. Restores eager at the end of the block.

    Dynamo's caches stay as they are, because copies of a model share their code objects: emptying the caches would stop
    the candidates that still run. Raises TimeoutError if settling takes longer than `seconds`.
    """
    try:
        prepare(candidate, training, cache_dir)
        yield settle(candidate, training, seconds)
    finally:
        restore(candidate, training)


def restore(candidate: Candidate, training: Training) -> None:
    """Restores eager in the session's modules."""
    for module in training.modules.values():
        if candidate.tunes:
            import agspeed

            agspeed.restore(module)
        else:
            module._compiled_call_impl = None


def prepare(candidate: Candidate, training: Training, cache_dir: Path) -> None:
    for module in training.modules.values():
        candidate.prepare(module, cache_dir)
    for optimizer in training.optimizers if candidate.fuses_optimizers else ():
        for group in optimizer.param_groups:
            if "fused" in group:
                group.update(fused=True, foreach=False)


def settle(candidate: Candidate, training: Training, seconds: float, min_steps: int = 6) -> Settled:
    """Runs steps until all is compiled and nothing is tuning. Raises TimeoutError after `seconds`.

    Optimizers are decided after modules. They get a limited number of steps, because mode="auto" may never tune some.
    """
    started, steps, left = time.monotonic(), 0, _MOST_STEPS_OF_OPTIMIZERS
    least = max(min_steps, 2 * training.period)
    with generated_code() if candidate.name in ORACLE[1:] + LEVELLED[1:] else nullcontext(set()) as code:
        while True:
            if steps >= least and not is_tuning(candidate, training):
                if not (candidate.tunes and left and _is_tuning_optimizers(training)):
                    break
                left -= 1
            training.step(training.batches[steps % len(training.batches)])
            steps += 1
            if candidate.tunes:
                _wait_for_compiles(training)
            if time.monotonic() - started > seconds:
                raise TimeoutError(f"{candidate.name} was still settling after {steps} steps and {seconds:.0f} s")
    seconds, found = time.monotonic() - started, reports(training) if candidate.tunes else {}
    chosen = {name: decision(report) for name, report in found.items()}
    return Settled(seconds, steps, chosen, lost_backends(found.values()), frozenset(code))


def is_tuning(candidate: Candidate, training: Training) -> bool:
    """True while agspeed is still deciding about a module of the session."""
    if not candidate.tunes:
        return False
    import agspeed

    return any(agspeed.status(module) == "tuning" for module in training.modules.values())


def _is_tuning_optimizers(training: Training) -> bool:
    """True while agspeed is still deciding about an optimizer of the session."""
    from agspeed.frontend.session import session_of

    sessions = [session_of(module) for module in training.modules.values()]
    return any(tuned.is_tuning for session in sessions if session is not None for tuned in session.optimizers)


def _wait_for_compiles(training: Training) -> None:
    import agspeed

    for module in training.modules.values():
        agspeed.wait(module)


def reports(training: Training) -> dict[str, dict[str, Any]]:
    """agspeed's report of each module of the session, as data."""
    import agspeed

    return {name: agspeed.report(module).to_dict() for name, module in training.modules.items()}


def decision(report: dict[str, Any]) -> str:
    """The chosen plan's name, with the choices of regions that differ from it."""
    regions = {region["chosen"] for region in report["regions"] if region["chosen"]}
    return "+".join([report["decision"]["chosen"], *sorted(regions - {report["decision"]["chosen"]})])


def lost_backends(found: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """By backend: its state and reason in each region of these reports in which it is not ready."""
    lost: dict[str, list[str]] = {}
    for region in (region for report in found for region in report["regions"]):
        for row in region["candidates"]:
            if row["state"] not in ("chosen", "pending"):
                lost.setdefault(row["name"], []).append(f"{region['id']} {row['state']}: {row['reason']}")
    return lost


@contextmanager
def generated_code() -> Iterator[set[str]]:
    """Collects the source of every wrapper that Inductor generates or loads from its cache inside the block."""
    from torch._inductor.graph import GraphLowering

    collected: set[str] = set()
    previous = GraphLowering.save_output_code
    GraphLowering.save_output_code = staticmethod(lambda source: collected.add(_without_comments(source)))
    try:
        yield collected
    finally:
        GraphLowering.save_output_code = previous


def _without_comments(source: str) -> str:
    """The wrapper's text without comment lines, which carry source positions."""
    return "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("#"))
