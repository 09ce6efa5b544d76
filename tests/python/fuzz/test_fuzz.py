# SPDX-License-Identifier: Apache-2.0
"""300 random graphs, forward and backward, static and dynamic: the native backend computes the same as eager."""

from __future__ import annotations

import pytest
import torch

from agspeed.backends import candidate
from tests.python.fuzz.campaign import run_campaign
from tests.python.fuzz.differential import check, compile_with, mutated, shrink, with_target
from tests.python.fuzz.programs import Program, generate

PIECES = 12
GRAPHS_PER_PIECE = 25


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", [*range(PIECES // 4), *(pytest.param(i, marks=pytest.mark.thorough) for i in range(PIECES // 4, PIECES))]
)
def test_native_computes_what_eager_computes(piece: int) -> None:
    reason = candidate("native").unavailable()
    if reason:
        pytest.skip(f"the native backend cannot run: {reason}")
    tally = run_campaign("native", 1000 + piece * GRAPHS_PER_PIECE, GRAPHS_PER_PIECE)
    print(tally)
    assert not tally.failures, "\n\n".join(tally.failures)
    assert tally.unsupported <= tally.graphs // 10, str(tally)
    assert tally.native_operators * 2 >= tally.operators, f"less than half of the operators are native: {tally}"


def test_aot_computes_what_eager_computes() -> None:
    tally = run_campaign("aot", 0, 10)
    assert not tally.failures, "\n\n".join(tally.failures)


def test_most_graphs_are_exact() -> None:
    """Most comparisons are bit for bit, so that a reordered sum is never an excuse."""

    def eager(program: Program, dynamic: bool) -> Program:
        return program

    results = [check(generate(seed), eager, dynamic=bool(seed % 2)) for seed in range(60)]
    assert all(result.problem is None for result in results)
    assert sum(result.exact for result in results) >= 40


def test_programs_follow_from_their_seed() -> None:
    assert str(generate(5)) == str(generate(5))
    assert str(generate(5)) != str(generate(6))


def test_finds_injected_mutants() -> None:
    """Exchanges one operator in the compiled program. The comparison finds every mutant whose results differ at all."""
    caught, equivalent = 0, 0
    for seed in range(60):
        program = generate(seed)
        for number in range(len(program.steps)):
            wrong = mutated(program, number)
            if wrong is None:
                continue
            result = check(program, lambda _, dynamic, wrong=wrong: wrong, dynamic=False)
            if result.problem is None:
                assert _same_results(program, wrong), f"seed {seed}, step {number} not noticed:\n{program}"
                equivalent += 1
            else:
                caught += 1
    print(f"seeds 0 to 59: {caught} mutants caught, {equivalent} equivalent on their data")
    assert caught > 100


def _same_results(program: Program, wrong: Program) -> bool:
    results = (program(*program.make_inputs()), wrong(*wrong.make_inputs()))
    return all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_shrinks_a_failure_to_its_core() -> None:
    """A backend computes relu as abs; the shrunk program is about relu."""
    seed = next(s for s in range(200) if any(step.target is torch.relu for step in generate(s).steps[:-2]))
    program = generate(seed)

    def broken(given: Program, dynamic: bool) -> Program:
        for number, step in enumerate(given.steps):
            if step.target is torch.relu:
                given = with_target(given, number, torch.abs)
        return given

    def fails(given: Program) -> bool:
        return check(given, broken, dynamic=False).problem is not None

    if not fails(program):
        pytest.skip(f"seed {seed}: the exchanged operator makes no difference on its data")
    small = shrink(program, fails)
    assert any(step.target is torch.relu for step in small.steps)
    assert len(small.steps) <= 3, str(small)


@pytest.mark.slow
def test_a_mutated_graph_compiled_natively_is_caught() -> None:
    reason = candidate("native").unavailable()
    if reason:
        pytest.skip(f"the native backend cannot run: {reason}")
    compiler, caught = compile_with("native"), 0
    for seed in range(2000, 2010):
        program = generate(seed)
        for number in range(len(program.steps)):
            wrong = mutated(program, number)
            if wrong is None or _same_results(program, wrong):
                continue
            result = check(program, lambda _, dynamic, wrong=wrong: compiler(wrong, dynamic), dynamic=False)
            assert result.problem or result.unsupported, f"seed {seed}, step {number} not noticed:\n{program}"
            caught += result.problem is not None
            break
    assert caught >= 5
