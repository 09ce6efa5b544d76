# SPDX-License-Identifier: Apache-2.0
"""Samples of torch's own databases train as in eager. A selection runs here; `samples.EVERY` can select all."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import agspeed
from agspeed import native
from agspeed.frontend.session import session_of
from tests.python.databases import samples
from tests.python.databases.samples import SEED, Sample, numbers
from tests.python.support.pairs import first_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
    pytest.mark.filterwarnings("ignore"),
]
_STEPS = 6
_FIRST = {"aot": 0, "native": 7, "inductor": 13}
_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


def _train(sample: Sample, backend: str | None) -> tuple[list[Any], Any]:
    """Returns outputs, gradients and weights of each step, or the error that ended training."""
    model, args, kwargs = sample.make()
    if backend is not None:
        agspeed.optimize(model, mode="deterministic", backends=[backend])
    torch.manual_seed(SEED)
    seen: list[Any] = []
    for _ in range(_STEPS):
        try:
            found = numbers(model(*_copies(args), **_copies(kwargs)))
            trained = [value for value in found if value.requires_grad and value.numel()]
            if trained:
                sum(value.abs().float().mean() for value in trained).backward()  # type: ignore[union-attr]
            seen += [value.detach().clone() for value in found]
            with torch.no_grad():
                for p in model.parameters():
                    seen.append(None if p.grad is None else p.grad.clone())
                    if p.grad is not None:
                        p.sub_(p.grad, alpha=1e-3)
                        p.grad = None
        except Exception as error:
            seen.append(type(error))
            break
    return seen, model


def _copies(value: Any) -> Any:
    def copy(leaf: Any) -> Any:
        return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf

    return torch.utils._pytree.tree_map(copy, value)


def _difference(sample: Sample, backend: str, dtype: torch.dtype) -> tuple[str | None, bool]:
    """Returns how agspeed's steps differ from eager's, or None, and whether `backend` ran. If it did not run, there
    must be a reason."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, _ = _train(sample, None)
        again, _ = _train(sample, None)
        actual, model = _train(sample, backend)
    session = session_of(model)
    ran = session is not None and any(region.selected == backend for region in session.regions)
    if _first_difference(again, expected, dtype) is not None:
        return None, ran  # two eager runs differ
    difference = _first_difference(actual, expected, dtype)
    is_short = expected[-1:] and isinstance(expected[-1], type)  # eager ended with an error
    if difference is None and not ran and not is_short and not _reasons(model, session):
        difference = f"{backend} did not run, without a reason: {agspeed.status(model).reason}"
    return difference, ran


def _reasons(model: Any, session: Any) -> list[str]:
    """The reasons why a backend did not run: for regions, for frames that were not captured, for a whole model."""
    found = [outcome.reason for region in session.regions for outcome in region.outcomes.values() if outcome.reason]
    found += [reason for _, reason in session.history.fallbacks]
    whole = agspeed.status(model).reason
    return found + [whole] * (": " in whole)


def _first_difference(actual: list[Any], expected: list[Any], dtype: torch.dtype) -> str | None:
    if len(actual) != len(expected):
        return f"{len(actual)} values for {len(expected)}: it ended with {actual[-1:]}, eager with {expected[-1:]}"
    for index, (mine, theirs) in enumerate(zip(actual, expected, strict=True)):
        if not isinstance(theirs, torch.Tensor) or not isinstance(mine, torch.Tensor):
            if mine is not theirs:
                return f"value {index} is {mine} for {theirs}"
            continue
        bound = _TOLERANCES[dtype]
        try:
            torch.testing.assert_close(mine, theirs, rtol=bound, atol=bound, equal_nan=True)
        except AssertionError as error:
            return f"value {index}: {error}"
    return None


def _assert_all_right(chosen: list[Sample], backend: str, dtype: torch.dtype, least_run: float) -> None:
    """`least_run` is the share of the samples that the backend must have run."""
    wrong, num_ran = {}, 0
    for sample in chosen:
        problem, ran = _difference(sample, backend, dtype)
        num_ran += ran
        if problem is not None:
            wrong[sample.name] = problem
    lines = "\n".join(f"{name}: {problem}" for name, problem in wrong.items())
    print(f"{len(chosen)} samples, {backend} ran in {num_ran}, {len(wrong)} wrong (seed {SEED})")
    assert not wrong, f"{len(wrong)} of {len(chosen)} samples are wrong, {backend} ran in {num_ran}\n{lines}"
    assert num_ran >= least_run * len(chosen), f"{backend} ran in {num_ran} of {len(chosen)} samples only"


@pytest.mark.parametrize("dtype", first_of([torch.float32, torch.bfloat16], 1), ids=str)
@pytest.mark.parametrize("backend", first_of(["native", "aot", "inductor"], 1))
@pytest.mark.parametrize("database", first_of(["op_db", "autograd_function_db", "hop_db"], 2))
def test_operators(database: str, backend: str, dtype: torch.dtype) -> None:
    chosen = list(samples.operator_samples(database, dtype, _FIRST[backend]))
    # The gate refuses most higher-order operators, whose bodies it cannot follow.
    _assert_all_right(chosen, backend, dtype, least_run={"op_db": 0.8, "hop_db": 0.1}.get(database, 1 / 3))


@pytest.mark.parametrize("dtype", first_of([torch.float32, torch.bfloat16], 1), ids=str)
@pytest.mark.parametrize("backend", first_of(["native", "aot", "inductor"], 1))
def test_modules(backend: str, dtype: torch.dtype) -> None:
    _assert_all_right(list(samples.module_samples(dtype, _FIRST[backend])), backend, dtype, least_run=0.8)


def _optimizer_cases() -> list[tuple[str, Any, dict[str, Any]]]:
    from torch.testing._internal.common_optimizers import optim_db

    return [
        (f"{info.optim_cls.__name__} {number}", info.optim_cls, given.kwargs)
        for info in optim_db
        if not info.only_supports_sparse_grads
        for number, given in enumerate(info.optim_inputs_func(device="cpu"))
    ]


def test_optimizers() -> None:
    def train(kind: Any, options: dict[str, Any], *, is_optimized: bool) -> list[torch.Tensor]:
        torch.manual_seed(SEED)
        model = torch.nn.Linear(6, 4, bias=kind is not getattr(torch.optim, "Muon", None))
        optimizer = kind(model.parameters(), **options)
        if is_optimized:
            model, optimizer = agspeed.optimize(model, optimizer, mode="deterministic", backends=["aot"])
        for step in range(_STEPS):
            x = torch.randn(5, 6, generator=torch.Generator().manual_seed(step))

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
        return [value.detach().clone() for value in model.parameters()]

    wrong = []
    for name, kind, options in _optimizer_cases():
        try:
            expected = train(kind, options, is_optimized=False)
        except Exception:
            continue  # torch refuses these options here
        actual = train(kind, options, is_optimized=True)
        if not all(
            torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) for a, b in zip(actual, expected, strict=True)
        ):
            wrong.append(f"{name} {options}")
    assert not wrong, wrong
