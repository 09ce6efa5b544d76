# SPDX-License-Identifier: Apache-2.0
"""One unusual call during training or tuning has eager's effect, and the model stays captured."""

from __future__ import annotations

import copy
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import agspeed
from agspeed import native
from agspeed.frontend.session import session_of
from agspeed.frontend.shadow import comparison
from agspeed.torch_compat.shapes import FakeTensorMode
from tests.python.support.pairs import pairs

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")
_SEED = 3
_LIMIT_S = 240


class Net(nn.Module):
    """Two layers, and a multiplication that accepts inputs of any type."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.scale = nn.Linear(6, 6), nn.Linear(6, 3), nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_complex():
            return x * self.scale
        return self.second(torch.tanh(self.first(x) * self.scale))


def _raising(call: Callable[[nn.Module], Any], error: type[BaseException]) -> Callable[[nn.Module], None]:
    def odd(model: nn.Module) -> None:
        with pytest.raises(error):
            call(model)

    return odd


def _counted(model: nn.Module) -> None:
    with FlopCounterMode(display=False) as counter:
        model(torch.ones(4, 6)).sum().backward()
    forward = 2 * 4 * 6 * 6 + 2 * 4 * 6 * 3
    assert counter.get_total_flops() == 3 * forward - 2 * 4 * 6 * 6  # the first layer's input takes no gradient


class _Dispatching(TorchDispatchMode):
    num = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _Dispatching.num += 1
        return func(*args, **(kwargs or {}))


class _Doubling(TorchFunctionMode):
    """Doubles the result of tanh."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.tanh else result


def _seen_by_a_dispatch_mode(model: nn.Module) -> None:
    _Dispatching.num = 0
    with _Dispatching():
        model(torch.ones(4, 6))
    assert 4 <= _Dispatching.num <= 12


def _doubled(model: nn.Module) -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    with _Doubling():
        output = model(x)
    expected = model.second(2 * torch.tanh(model.first(x) * model.scale))
    torch.testing.assert_close(output, expected)


def _fake(model: nn.Module) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert model(torch.ones(4, 6)).shape == (4, 3)


def _swapped(model: nn.Module) -> None:
    torch.utils.swap_tensors(model.first.weight, nn.Parameter(model.first.weight.detach().clone()))


ODD: dict[str, Callable[[nn.Module], Any]] = {
    "wrong shape": _raising(lambda model: model(torch.ones(4, 5)), RuntimeError),
    "wrong type": _raising(lambda model: model(torch.ones(4, 6, dtype=torch.float64)), RuntimeError),
    "no tensor": _raising(lambda model: model("text"), AttributeError),
    "no argument": _raising(lambda model: model(), TypeError),
    "another argument": _raising(lambda model: model(torch.ones(4, 6), mask=None), TypeError),
    "complex": lambda model: model(torch.ones(4, 6, dtype=torch.complex64)).abs().sum().backward(),
    "no gradient": lambda model: torch.no_grad()(model)(torch.ones(4, 6)),
    "inference": lambda model: torch.inference_mode()(model)(torch.ones(4, 6)),
    "empty batch": lambda model: model(torch.ones(0, 6)).sum().backward(),
    "one more dimension": lambda model: model(torch.ones(2, 4, 6)).sum().backward(),
    "not contiguous": lambda model: model(torch.ones(6, 4).t()).sum().backward(),
    "input takes gradients": lambda model: model(torch.ones(4, 6, requires_grad=True)).sum().backward(),
    "keyword": lambda model: model(x=torch.ones(4, 6)).sum().backward(),
    "autocast": lambda model: torch.autocast("cpu", torch.bfloat16)(model)(torch.ones(4, 6)).float().sum().backward(),
    "flops": _counted,
    "dispatch mode": _seen_by_a_dispatch_mode,
    "function mode": _doubled,
    "vmap": lambda model: torch.vmap(model)(torch.ones(3, 4, 6)),
    "jvp": lambda model: torch.func.jvp(model, (torch.ones(4, 6),), (torch.ones(4, 6),)),
    "jacrev": lambda model: torch.func.jacrev(model)(torch.ones(6)),
    "functional call": lambda model: torch.func.functional_call(
        model, dict(model.named_parameters()), torch.ones(4, 6)
    ),
    "fake": _fake,
    "meta": _raising(lambda model: model(torch.ones(4, 6, device="meta")), Exception),
    "traced": lambda model: torch.jit.trace(model, torch.ones(4, 6), check_trace=False),
    "default device": lambda model: _with_device(model),
    "deterministic": lambda model: _deterministic(model),
    "frozen": lambda model: _frozen(model),
    "eval": lambda model: (model.eval()(torch.ones(4, 6)).sum().backward(), model.train()),
    "saved-tensor hooks": lambda model: _saved_elsewhere(model),
    "swapped": _swapped,
}


def _with_device(model: nn.Module) -> None:
    with torch.device("cpu"):
        model(torch.ones(4, 6)).sum().backward()


def _deterministic(model: nn.Module) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        model(torch.ones(4, 6)).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


def _frozen(model: nn.Module) -> None:
    model.first.requires_grad_(False)
    model(torch.ones(4, 6)).sum().backward()
    model.first.requires_grad_(True)


def _saved_elsewhere(model: nn.Module) -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda value: value.clone(), lambda value: value):
        model(torch.ones(4, 6)).sum().backward()


def _train(model: nn.Module, odd: Callable[[nn.Module], Any], first: int, num_steps: int = 12) -> list[torch.Tensor]:
    """Trains with an unusual call after step `first`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(num_steps):
        optimizer.zero_grad()
        model(torch.randn(4, 6, generator=torch.Generator().manual_seed(step))).square().sum().backward()
        optimizer.step()
        if step == first:
            odd(model)
    return [value.detach().clone() for value in model.parameters()]


def _made() -> nn.Module:
    torch.manual_seed(_SEED)
    return Net()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "first"), pairs(list(ODD), [0, 8]))  # the first step, while it tunes or later
def test_an_odd_call_leaves_the_model_captured(name: str, first: int) -> None:
    expected = _train(_made(), ODD[name], first)
    model = _made()
    agspeed.optimize(model, mode="deterministic", backends=["aot"])
    actual = _train(model, ODD[name], first)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    session = session_of(model)
    assert session is not None
    assert agspeed.status(model) == "tuned", agspeed.status(model).reason
    calls = []
    dispatcher = session.regions[0].dispatcher
    dispatcher.set_target(lambda *args, run=session.regions[0]._target: (calls.append(1), run(*args))[1])
    model(torch.randn(4, 6)).sum().backward()
    assert calls, "the ordinary call does not run the captured graph any more"


def test_counting_flops_first_leaves_no_trace_in_the_database(tmp_path: Path) -> None:
    model = _made()
    agspeed.optimize(model, mode="deterministic", backends=["aot"], cache_dir=tmp_path)
    _counted(model)
    assert session_of(model).regions == [] and session_of(model)._controller is None  # type: ignore[union-attr]
    _train(model, lambda model: None, 0)
    assert agspeed.status(model) == "tuned"


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("milliseconds", [5, 20, 50, 100, 200, 400])
def test_what_a_signal_handler_raises_reaches_the_user(milliseconds: int) -> None:
    arrived = []

    def stop(number: int, frame: Any) -> None:
        arrived.append(number)
        raise StoppedError

    model, caught = _made(), 0
    before = signal.signal(signal.SIGALRM, stop)
    try:
        agspeed.optimize(model, mode="deterministic", backends=["native"])
        signal.setitimer(signal.ITIMER_REAL, milliseconds / 1000)
        try:
            _train(model, lambda model: None, 0, num_steps=40)
        except StoppedError:
            caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(arrived) == caught, "an exception of the handler was swallowed"
    deadline = time.monotonic() + _LIMIT_S
    while agspeed.status(model) == "tuning" and time.monotonic() < deadline:
        _train(model, lambda model: None, 0)
    assert agspeed.status(model) == "tuned", agspeed.status(model).reason


@pytest.mark.parametrize("part", ["Before", "differences", "gradients"])
def test_what_a_signal_handler_raises_during_a_comparison_reaches_the_user(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal arrives while the comparison copies the state, compares results, or computes gradients."""

    def stop(number: int, frame: Any) -> None:
        raise StoppedError

    run = getattr(comparison, part)

    def interrupted(*args: Any) -> Any:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGALRM)
        return run(*args)

    model = agspeed.optimize(_made(), mode="deterministic", backends=["native"])
    monkeypatch.setattr(comparison, part, interrupted)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(StoppedError):
            _train(model, lambda model: None, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    _train(model, lambda model: None, 0)
    assert agspeed.status(model) == "tuned", agspeed.status(model).reason
    session = session_of(model)
    assert session is not None and session.runner.comparison.obstacle is None


@pytest.mark.thorough
def test_a_backward_runs_in_a_process_forked_after_a_capture() -> None:
    script = """
import os, torch, agspeed
model = agspeed.optimize(torch.nn.Linear(4, 2), mode="deterministic", backends=["aot"])
for _ in range(4):
    model(torch.ones(3, 4)).sum().backward()
child = os.fork()
if child == 0:
    other = torch.nn.Linear(3, 3)
    other(torch.ones(2, 3)).sum().backward()
    os._exit(0)
raise SystemExit(os.waitpid(child, 0)[1])
"""
    import subprocess
    import sys

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.LazyLinear(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(torch.tanh(self.first(x))))


def test_lazy_modules_get_their_parameters_in_the_first_call() -> None:
    def train(model: nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(_SEED)
        model(torch.ones(4, 6))
        return _train(model, lambda model: None, 0)

    model = Lazy()
    agspeed.optimize(model, mode="deterministic", backends=["aot"])
    torch.testing.assert_close(train(model), train(Lazy()), rtol=1e-5, atol=1e-6)
    assert agspeed.status(model) == "tuned"


class _Shifting(TorchFunctionMode):
    """Adds 1 to the results of some functions."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + 1 if func in (torch.tanh, torch.mul, nn.functional.linear) else result


class WithMode(nn.Module):
    """Enters modes in its forward, around a graph break."""

    def __init__(self, *modes: type[TorchFunctionMode]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)
        self._modes = modes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        with self._modes[0]():
            hidden = torch.tanh(hidden)
            torch._dynamo.graph_break()
            hidden = torch.mul(torch.tanh(hidden), 0.5)
            with self._modes[-1]():
                hidden = torch.tanh(hidden)
                torch._dynamo.graph_break()
                hidden = torch.tanh(hidden) + hidden
        return self.second(torch.tanh(hidden))


@pytest.mark.parametrize("backend", ["aot", "native"])
@pytest.mark.parametrize("modes", [(_Doubling,), (_Shifting,), (_Doubling, _Shifting)], ids=str)
def test_a_mode_around_a_graph_break_applies_once(modes: tuple[type[TorchFunctionMode], ...], backend: str) -> None:
    torch.manual_seed(_SEED)
    plain = WithMode(*modes)
    model = copy.deepcopy(plain)
    agspeed.optimize(model, mode="deterministic", backends=[backend])
    for step in range(6):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
        outputs = [each(x) for each in (plain, model)]
        torch.testing.assert_close(outputs[1], outputs[0])
        for output in outputs:
            output.square().sum().backward()
        gradients = [[value.grad for value in each.parameters()] for each in (plain, model)]
        torch.testing.assert_close(gradients[1], gradients[0])
    assert agspeed.status(model) == "tuned", agspeed.status(model).reason


@pytest.mark.parametrize("backend", ["aot", "native"])
def test_calls_that_raise_leave_the_random_stream_where_eager_does(backend: str) -> None:
    plain = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3))
    model = agspeed.optimize(copy.deepcopy(plain), mode="deterministic", backends=[backend])
    with torch.inference_mode():
        refused = torch.ones(4, 6)

    def draws(model: nn.Module) -> list[float]:
        torch.manual_seed(_SEED)
        drawn = []
        for step in range(12):
            if step in (3, 8):
                model(torch.ones(4, 6)).sum().backward()
            else:
                with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
                    model(refused).sum().backward()
            drawn.append(torch.rand(()).item())
        return drawn

    assert draws(model) == draws(plain)
