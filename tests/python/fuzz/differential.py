# SPDX-License-Identifier: Apache-2.0
"""Runs a Program eagerly and through a candidate, forward and backward, and compares. Shrinks programs that differ.

Arithmetic was exact if every operator's float64 result is a float32 number and eager's results equal the float64 ones.
Then the candidate has to match bit for bit. Otherwise the gate's rules against float64 decide. The error may be a
multiple of eager's own. If that is too strict, a bound follows from how far rounding in every operator moves the
result, in the worst of several runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from agspeed.backends import CompileOptions, candidate
from agspeed.errors import UnsupportedError
from agspeed.tuning.gate.compare import Deviation, compare, compare_exactly, deviation
from agspeed.tuning.gate.facts import facts_problem, gradient_problem
from agspeed.tuning.gate.inputs import InputCopies
from agspeed.tuning.gate.modes import Promoted
from agspeed.tuning.gate.noise import Noisy
from agspeed.tuning.gate.run import Run, Tangents, execute, promoted
from tests.python.fuzz.programs import BATCH, Program, Ref, to_graph

Runner = Callable[..., Sequence[Any]]
Noise = dict[str, Deviation]
"""The deviations that rounding noise caused in one run, by the tensor's name."""
Compiler = Callable[[Program, bool], Runner]
"""``compiler(program, dynamic) -> runner over the program's inputs``. Raises UnsupportedError if it must not run."""

OTHER_BATCHES = (7, 12)
_NOISY_RUNS = 4
"""More than one, because noise has random signs: two changes may cancel in the element that decides."""


@dataclass(frozen=True)
class Result:
    """`problem`: how the candidate differs, or None. `exact`: whether eager's arithmetic was. `unsupported`: why not
    run."""

    problem: str | None = None
    exact: bool = False
    unsupported: str | None = None
    native_operators: int = 0
    operators: int = 0


def compile_with(name: str) -> Compiler:
    """Returns a compiler that uses a registered candidate in the same way as the product."""

    def compiler(program: Program, dynamic: bool) -> Runner:
        graph = to_graph(program)
        examples = _example_inputs(program, graph, dynamic)
        options = CompileOptions(num_threads=torch.get_num_threads(), dynamic=dynamic)
        runner = candidate(name).compile(graph, examples, options)
        if not dynamic:
            return runner
        run = _with_batch(runner)
        run.native_operators = getattr(runner, "native_operators", 0)  # type: ignore[attr-defined]
        return run

    return compiler


def check(program: Program, compiler: Compiler, *, dynamic: bool) -> Result:
    """Compiles, and compares at one batch size, or at three if `dynamic`."""
    try:
        runner = compiler(program, dynamic)
    except UnsupportedError as error:
        return Result(unsupported=str(error))
    except Exception as error:
        if _eager_refuses(program):
            return Result(unsupported=f"eager refuses it as well: {_first_line(error)}")
        return Result(f"compile raised {type(error).__name__}: {_first_line(error)}")
    exact = True
    for batch in (BATCH, *(OTHER_BATCHES if dynamic else ())):
        problem, was_exact = _compare_at(program, runner, batch)
        exact &= was_exact
        if problem is not None:
            return Result(f"at batch size {batch}: {problem}", exact)
    native = int(getattr(runner, "native_operators", 0))
    return Result(exact=exact, native_operators=native, operators=len(program.steps))


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Returns the smallest program found that still fails, by dropping outputs and bypassing steps."""
    improved = True
    while improved:
        improved = False
        for smaller in _smaller(program):
            if _size(smaller) < _size(program) and _runs(smaller) and fails(smaller):
                program, improved = smaller, True
                break
    return program


def _size(program: Program) -> tuple[int, int]:
    return len(program.steps), len(program.outputs)


def _smaller(program: Program) -> list[Program]:
    made = []
    if len(program.outputs) > 1:
        made += [replace(program, outputs=(index,)).without_dead_steps() for index in program.outputs]
    base = len(program.inputs)
    for number, step in reversed(list(enumerate(program.steps))):
        for source in step.refs():
            made.append(_bypassed(program, base + number, source).without_dead_steps())
    made += [replace(program, outputs=(base + number,)).without_dead_steps() for number in range(len(program.steps))]
    return made


def _bypassed(program: Program, index: int, source: int) -> Program:
    def moved(arg: Any) -> Any:
        if isinstance(arg, list):
            return [moved(item) for item in arg]
        return Ref(source) if isinstance(arg, Ref) and arg.index == index else arg

    steps = tuple(replace(step, args=tuple(moved(arg) for arg in step.args)) for step in program.steps)
    outputs = tuple(source if output == index else output for output in program.outputs)
    return replace(program, steps=steps, outputs=outputs)


def _runs(program: Program) -> bool:
    try:
        outputs = program(*program.make_inputs())
    except (RuntimeError, IndexError, ValueError):
        return False
    base = len(program.inputs)
    return all(index >= base for index in program.outputs) and any(value.requires_grad for value in outputs)


def _eager_refuses(program: Program) -> bool:
    """True if the program is no valid training code, e.g. because it changes a buffer that the backward needs."""
    try:
        execute(program, InputCopies(program.make_inputs()), lambda results: [_integer_tangents(results, program.seed)])
    except RuntimeError:
        return True
    return False


def _compare_at(program: Program, runner: Runner, batch: int) -> tuple[str | None, bool]:
    inputs = program.make_inputs(batch)
    sets: list[Tangents] = []

    def tangents(results: Sequence[Any]) -> Sequence[Tangents]:
        sets.append(_integer_tangents(results, program.seed))
        return sets

    eager = execute(program, InputCopies(inputs), tangents)
    narrow = _Narrow()
    wide = execute(program, InputCopies(inputs, promote=True), promoted(sets), modes=[Promoted(()), narrow])
    exact = narrow.holds and _is_exact(eager, wide)
    try:
        mine = execute(runner, InputCopies(inputs), sets)
    except Exception as error:
        return f"it raised {type(error).__name__}: {_first_line(error)}", exact
    if exact or _difference(mine, eager, wide, False) is None:
        return _difference(mine, eager, wide, exact), exact
    problem, noise = None, []
    for number in range(_NOISY_RUNS):
        noisy = _tensors(_run_noisily(program, inputs, sets, program.seed + number))
        theirs = _tensors(eager)
        exactly = theirs | _tensors(wide)
        noise.append(
            {name: deviation(value, theirs[name], exactly[name]) for name, value in noisy.items() if name in theirs}
        )
        problem = _difference(mine, eager, wide, False, noise)
        if problem is None:
            break
    return problem, False


def _run_noisily(program: Program, inputs: list[torch.Tensor], tangents: Sequence[Tangents], seed: int) -> Run:
    noise = Noisy(torch.finfo(torch.float32).eps, seed)
    copies = InputCopies(inputs, promote=True, change=lambda flat, like: noise.shaken(flat))
    return execute(program, copies, promoted(tangents), modes=[Promoted(()), noise])


def _difference(mine: Run, eager: Run, wide: Run, exact: bool, noise: Sequence[Noise] = ()) -> str | None:
    problem = facts_problem(mine.facts, eager.facts)
    problem = problem or gradient_problem(mine.gradients[0], eager.gradients[0], zeros_for_none=False)
    if problem is None and mine.mutated.keys() != eager.mutated.keys():
        problem = f"it changes inputs {sorted(mine.mutated)} instead of {sorted(eager.mutated)}"
    if problem is not None:
        return problem
    theirs, reference = _tensors(eager), _tensors(wide)
    for name, value in _tensors(mine).items():
        if exact and torch.equal(value, theirs[name]):  # equal even if the signs of zeros differ
            continue
        rule = compare_exactly(name, value, theirs[name]) if exact else None
        error = rule or compare(
            name, value, theirs[name], reference[name], [each[name] for each in noise if name in each]
        )
        if not error.ok:
            return f"{name} {error.problem}"
    return None


def _tensors(run: Run) -> dict[str, torch.Tensor]:
    found = {f"output {i}": value for i, value in enumerate(run.outputs)}
    found |= {f"input {i} after the call": value for i, value in run.mutated.items()}
    gradients = run.gradients[0].items()
    return found | {f"the gradient of input {i}": value for i, value in gradients if value is not None}


class _Narrow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`holds` is True while every number that operators have made is a float32 number."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.holds = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        with _disable_current_modes():  # otherwise narrow numbers would be promoted again
            for value in tree_leaves(result):
                if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
                    self.holds &= torch.equal(value.float().double().nan_to_num(0.0), value.nan_to_num(0.0))
        return result


def _is_exact(eager: Run, wide: Run) -> bool:
    reference = _tensors(wide)
    return all(torch.equal(value.double(), reference[name].double()) for name, value in _tensors(eager).items())


def _integer_tangents(results: Sequence[Any], seed: int) -> Tangents:
    generator = torch.Generator().manual_seed(seed)
    return {
        i: torch.randint(-2, 3, value.shape, generator=generator).to(value.dtype)
        for i, value in enumerate(results)
        if value.requires_grad
    }


def _example_inputs(program: Program, graph: fx.GraphModule, dynamic: bool) -> list[Any]:
    """Returns fake inputs as Dynamo makes them. If `dynamic`, the batch size is a symbol and the graph's first
    input."""
    shape_env = ShapeEnv()
    mode = FakeTensorMode(shape_env=shape_env)
    placeholders = graph.graph.find_nodes(op="placeholder")
    examples: list[Any] = []
    for node, description in zip(placeholders, program.inputs, strict=True):
        dims = [DimDynamic.DUCK if dynamic and n == BATCH else DimDynamic.STATIC for n in description.shape]
        context: Any = StatelessSymbolicContext(
            dynamic_sizes=dims,
            dynamic_strides=[DimDynamic.INFER_STRIDE] * len(dims),
            constraint_sizes=[None] * len(dims),
            constraint_strides=[None] * len(dims),
        )
        fake = mode.from_tensor(description.make(BATCH), source=ConstantSource(node.name), symbolic_context=context)
        node.meta["example_value"] = fake
        examples.append(fake)
    if dynamic:
        batch = next(size for fake in examples for size in fake.shape if isinstance(size, torch.SymInt))
        with graph.graph.inserting_before(placeholders[0]):
            graph.graph.placeholder("s_batch").meta["example_value"] = batch
        graph.recompile()
        examples.insert(0, batch)
    return examples


def _with_batch(runner: Runner) -> Runner:
    def run(*tensors: Any) -> Sequence[Any]:
        return runner(tensors[0].shape[0], *tensors)

    return run


def mutated(program: Program, number: int) -> Program | None:
    """Returns the program with step `number` replaced by another operator of its kind, or None if there is none."""
    step = program.steps[number]
    other = _OTHERS.get(step.target)
    if other is None:
        return None
    return with_target(program, number, other)


def with_target(program: Program, number: int, target: Callable[..., Any]) -> Program:
    steps = list(program.steps)
    steps[number] = replace(steps[number], target=target)
    return replace(program, steps=tuple(steps))


_OTHERS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.add: torch.sub,
    torch.sub: torch.add,
    torch.mul: torch.add,
    torch.maximum: torch.minimum,
    torch.minimum: torch.maximum,
    torch.neg: torch.abs,
    torch.abs: torch.neg,
    torch.relu: torch.neg,
    torch.square: torch.abs,
    torch.floor: torch.ceil,
    torch.round: torch.floor,
    torch.trunc: torch.ceil,
    torch.sum: torch.amax,
    torch.amax: torch.amin,
    torch.amin: torch.amax,
    torch.gt: torch.ge,
    torch.ge: torch.lt,
    torch.lt: torch.le,
    torch.le: torch.gt,
    torch.eq: torch.ne,
    torch.ne: torch.eq,
    torch.logical_and: torch.logical_or,
    torch.logical_or: torch.logical_and,
    torch.softmax: torch.log_softmax,
    torch.tanh: torch.sigmoid,
}


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"
