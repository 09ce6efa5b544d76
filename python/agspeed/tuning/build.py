# SPDX-License-Identifier: Apache-2.0
"""Compiles one candidate for one region and gates it. Both the training process and the compile child use this."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Generator, Sequence
from typing import Any, Protocol

import torch
from torch import fx

from agspeed.backends import CompileOptions, candidate
from agspeed.backends.ambient import AmbientModes
from agspeed.backends.base import Runner, to_end
from agspeed.devices.accelerator import accelerator_of
from agspeed.devices.placement import home_of, tensors_in
from agspeed.devices.random_state import devices_of
from agspeed.errors import UnsupportedError
from agspeed.log import logger
from agspeed.regions.layouts import LaidOut
from agspeed.regions.outcome import Outcome, described
from agspeed.regions.proof import Proof
from agspeed.regions.sizes import InputSizes, SizedRunner, resized
from agspeed.regions.state import State
from agspeed.reporting import environment
from agspeed.torch_compat.autograd import current_backward, has_saved_tensor_hooks
from agspeed.torch_compat.partitioner import without_dumps
from agspeed.tuning.gate import check as gate
from agspeed.tuning.gate.figures import readable
from agspeed.tuning.gate.inputs import InputCopies
from agspeed.tuning.gate.modes import undisturbed


class BuildableRegion(Protocol):
    """The attributes of a region that `build` uses."""

    gm: fx.GraphModule
    example_inputs: list[Any]
    modes: AmbientModes
    sample: list[Any] | None
    other_sizes: list[InputSizes]
    where: str
    proofs: dict[str, Proof]
    """{candidate: the compile child's proof that its code passed the gate}."""


def build(name: str, region: BuildableRegion, options: CompileOptions) -> Outcome:
    """Compiles candidate `name` for `region` and compares it with eager on the region's captured inputs and at its
    other sizes. Skips the comparison if the compile child has already proven the same code right. Never raises.

    Returns: an Outcome that is ready and has a runner, or one that was skipped, failed or rejected, with the reason.
    """
    return to_end(build_in_parts(name, region, options))


def build_in_parts(name: str, region: BuildableRegion, options: CompileOptions) -> Generator[None, None, Outcome]:
    """Like `build`, as a generator: it yields between parts of the work, so that training steps can run meanwhile."""
    chosen = candidate(name)
    device = home_of(tensors_in(region.example_inputs)).type
    elsewhere = f"it serves the device {', '.join(chosen.devices)} alone" if device not in chosen.devices else None
    reason = elsewhere or chosen.unavailable() or chosen.skip_reason(region.gm, options)
    if reason:
        return Outcome(name, State.SKIPPED, reason)
    parts: Generator[None, None, Runner] | None = None
    seconds, runner, is_compiled = 0.0, None, False
    while not is_compiled:
        started = time.perf_counter()
        try:
            with region.modes.restored(), warnings.catch_warnings(), without_dumps():
                warnings.simplefilter("ignore")
                parts = parts or chosen.compile_in_parts(copy.deepcopy(region.gm), region.example_inputs, options)
                next(parts)
        except StopIteration as end:
            runner, is_compiled = end.value, True
        except UnsupportedError as error:
            return Outcome(name, State.SKIPPED, str(error), compile_seconds=seconds + time.perf_counter() - started)
        except (Exception, SystemExit) as error:
            logger.debug("%s could not compile the region at %s", name, region.where, exc_info=True)
            reason = f"compile failed with {type(error).__name__}: {described(error)}"
            return Outcome(name, State.FAILED, reason, compile_seconds=seconds + time.perf_counter() - started)
        seconds += time.perf_counter() - started
        if not is_compiled:
            yield
    outcome = Outcome(name, State.READY, runner=runner, compile_seconds=seconds)
    proof = region.proofs.get(name)
    if proof is not None and proof.covers(outcome):
        proof.apply(outcome)
    elif name != "graph-eager":
        yield
        _gate(outcome, region, options)
    return outcome


def _gate(outcome: Outcome, region: BuildableRegion, options: CompileOptions) -> None:
    """Rejects `outcome` unless the gate accepts its runner."""
    sample, runner = region.sample, outcome.runner
    if sample is None or runner is None:
        outcome.reject("no inputs were captured to check it with")
        return
    try:
        verdict = _check(runner, region.gm, region.modes, sample, options)
        seconds = verdict.seconds
        if not verdict.accepted and verdict.layouts:
            outcome.runner = runner = LaidOut(runner, verdict.layouts)
            verdict = _check(runner, region.gm, region.modes, sample, options)
            seconds += verdict.seconds
        outcome.gate_seconds, outcome.gate = seconds, verdict.to_dict()
        if not verdict.accepted:
            outcome.reject(verdict.reason)
        elif options.is_replicated:
            _reject_if_it_changes_parameters(outcome, region, sample)
        if outcome.usable and options.numerics != "off":
            _gate_other_sizes(outcome, runner, region, sample, options)
    except (Exception, SystemExit) as error:
        logger.debug("the region at %s cannot be checked", region.where, exc_info=True)
        outcome.reject(f"checking it failed with {type(error).__name__}: {described(error)}")


def _gate_other_sizes(
    outcome: Outcome, runner: Runner, region: BuildableRegion, sample: list[Any], options: CompileOptions
) -> None:
    """Repeats the check at the region's other sizes, and restricts the runner to sizes that passed.

    Skips sizes that eager cannot run or that need more memory than the machine has.
    """
    positions = [i for i, value in enumerate(region.example_inputs) if isinstance(value, torch.SymInt)]
    if not positions:
        return
    checked = [{position: int(sample[position]) for position in positions}]
    for sizes in region.other_sizes:
        try:
            inputs = resized(sample, sizes)
        except (RuntimeError, ValueError):
            logger.debug("no inputs of sizes %s can be made for the region at %s", sizes, region.where, exc_info=True)
            continue
        verdict = _check(runner, region.gm, region.modes, inputs, options)
        outcome.gate_seconds += verdict.seconds
        now = {position: int(inputs[position]) for position in positions}
        if verdict.outcome == "rejected":
            outcome.gate = verdict.to_dict()
            shown = ", ".join(map(str, now.values())), ", ".join(map(str, checked[0].values()))
            outcome.reject(f"{verdict.reason}, at size {shown[0]} (captured: {shown[1]})")
            return
        if verdict.accepted:
            checked.append(now)

    gm, modes = region.gm, region.modes

    def check_now(candidate: Runner, inputs: Sequence[object]) -> bool | None:
        return _check(candidate, gm, modes, inputs, options).accepted if _may_check_here() else None

    outcome.runner = SizedRunner(runner, gm, checked, check_now)


def _reject_if_it_changes_parameters(outcome: Outcome, region: BuildableRegion, sample: Sequence[object]) -> None:
    """Rejects the candidate if its graph changes a parameter in place.

    Ranks adopt candidates at different steps or not at all. Gradients may then differ in their last bits before the
    reduction, which makes them equal again. A parameter that a rank changes by itself would stay different.
    """
    copies = InputCopies(sample)
    with region.modes.restored(), undisturbed(devices_of(sample)):
        region.gm.forward(*copies.values)
    changed = [index for index in copies.changed() if isinstance(sample[index], torch.nn.Parameter)]
    if not changed:
        return
    node = region.gm.graph.find_nodes(op="placeholder")[changed[0]]
    reason = f"input {changed[0]} ({readable(node.name)}) is a parameter that it changes: all ranks need the same bits"
    outcome.gate |= {"verdict": "rejected", "reason": reason}
    outcome.reject(reason)


def _check(
    runner: Runner, gm: fx.GraphModule, modes: AmbientModes, inputs: Sequence[object], options: CompileOptions
) -> gate.Verdict:
    accelerator = accelerator_of(home_of(tensors_in(list(inputs))))
    budget = _memory_budget() if accelerator is None else accelerator.free_bytes()
    if accelerator is not None and budget is not None:
        budget //= 2
    policy = gate.Policy(options.numerics, memory_budget_bytes=budget, is_steady=accelerator is None)
    with modes.restored():
        return gate.check(runner, gm, inputs, policy)


def _may_check_here() -> bool:
    """Returns False under saved-tensor hooks and during a backward: the check's own forward and backward would be
    visible there."""
    return not has_saved_tensor_hooks() and current_backward() == -1


def _memory_budget() -> int | None:
    """Returns the bytes that the gate's float64 run may take on the CPU: half of the memory that is available now.
    None if that is unknown.
    """
    available = environment.available_bytes()
    return available // 2 if available is not None else None
