# SPDX-License-Identifier: Apache-2.0
"""Models with a part that cannot be captured: the parts before and after it run compiled and train as eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import rnn

import agspeed
from agspeed.frontend.session import session_of
from tests.python.frontend.differential import Outcome, as_loss, compare, state
from tests.python.support.small_models import data

pytestmark = pytest.mark.usefixtures("one_thread")

Wrap = Callable[[Any], Any]
Script = Callable[[Wrap], list[Any]]
STEPS = 14
"""More than the number of versions of a frame that Dynamo allows."""
LIMIT = "recompile limit"


class Net(nn.Module):
    """Two linear layers; subclasses put an operation between them."""

    def __init__(self, between: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.between, self.last = nn.Linear(8, 16), between, nn.Linear(16, 4)


class AskedInACondition(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x).relu()
        if hidden.mean().item() > 0.25:
            hidden = hidden * 2
        return self.last(hidden.tanh())


class AskedFirst(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.abs().max().item() > 2.5:
            x = x / 2
        return self.last(self.first(x).tanh())


class ScaledByAResult(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x).relu()
        share = hidden.detach().mean().item()
        return self.last(hidden * (1.0 + share) - share / 2).tanh()


class RaisedToAResult(Net):
    """Has a float that cannot be passed as a tensor, so the graph holds it as a constant."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x).sigmoid()
        level = round(hidden.detach().mean().item(), 1)
        return self.last(torch.clamp(hidden, min=level) + 1)


class WithoutGradientFirst(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            hidden = self.first(x).relu()
        scale = 2.0 if hidden.mean().item() > 0.25 else 1.0
        return self.last(hidden * scale).tanh()


class NotesAResult(Net):
    noted = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x).relu()
        self.noted = hidden.detach().mean().item()
        return self.last(hidden.tanh())


class Recurrent(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.between(self.first(x).relu())
        return self.last(hidden.relu()).tanh()


class RecurrentFirst(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, last = self.between(x)
        return self.last(self.first(hidden).relu() + last.mean()).tanh()


class Inner(nn.Module):
    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.before, self.recurrent, self.after = nn.Linear(16, 16), recurrent, nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recurrent(self.before(x).tanh())
        return self.after(hidden).tanh()


class Nested(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.between(self.first(x).relu()).relu())


class Packed(Net):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = rnn.pack_padded_sequence(self.first(x).relu(), lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = rnn.pad_packed_sequence(self.between(packed)[0], batch_first=True)
        return self.last(hidden.relu()).tanh()


class Masked(Net):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        kept = torch.arange(x.shape[1])[None] < lengths[:, None]
        return self.last(self.first(x).relu()[kept].tanh()).tanh()


class CutToTheLongest(Net):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x[:, : int(lengths.max())]).relu()).tanh()


def gru(**options: Any) -> nn.Module:
    return nn.GRU(16, 16, batch_first=True, **options)


def rows(step: int) -> tuple[torch.Tensor, ...]:
    return (data(6, 8, seed=step),)


def sequences(step: int) -> tuple[torch.Tensor, ...]:
    return (data(6, 5, 8, seed=step),)


def with_lengths(step: int) -> tuple[torch.Tensor, ...]:
    lengths = torch.randint(2, 8, (6,), generator=torch.Generator().manual_seed(step))
    return data(6, 7, 8, seed=step), lengths


def longer_and_longer(step: int) -> tuple[torch.Tensor, ...]:
    length = 5 + step % 4
    return data(6, length, 8, seed=step), torch.tensor([length, 4, 3, 5, 2, 1])


Make = Callable[[], nn.Module]
Batch = Callable[[int], tuple[torch.Tensor, ...]]
NETS: dict[str, tuple[Make, Batch, int]] = {
    "item in a condition": (AskedInACondition, rows, 2),
    "item in a condition first": (AskedFirst, rows, 2),
    "item in arithmetic": (ScaledByAResult, rows, 2),
    "item noted": (NotesAResult, rows, 2),
    "no gradient first": (WithoutGradientFirst, rows, 2),
    "GRU": (lambda: Recurrent(gru()), sequences, 2),
    "GRU first": (lambda: RecurrentFirst(nn.GRU(8, 8, batch_first=True)), sequences, 1),
    "GRU with dropout": (lambda: Recurrent(gru(num_layers=2, dropout=0.3)), sequences, 2),
    "LSTM": (lambda: Recurrent(nn.LSTM(16, 16, batch_first=True)), sequences, 2),
    "RNN": (lambda: Recurrent(nn.RNN(16, 16, batch_first=True)), sequences, 2),
    "GRU in a submodule": (lambda: Nested(Inner(gru())), sequences, 3),
    "packed sequences": (lambda: Packed(gru()), with_lengths, 2),
    "packed sequences of other lengths": (lambda: Packed(gru()), longer_and_longer, 2),
    "mask": (Masked, longer_and_longer, 2),
    "cut to the longest": (CutToTheLongest, with_lengths, 1),
}


def training(make: Make, batch: Batch, steps: int = STEPS) -> Script:
    def script(wrap: Wrap) -> list[Any]:
        model = wrap(make())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        losses = []
        for step in range(steps):
            optimizer.zero_grad()
            loss = as_loss(model(*batch(step)))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [*losses, *state(model), list(model.state_dict())]

    return script


def compiled_places(outcome: Outcome, candidate: str) -> set[str]:
    (session,) = outcome.sessions
    return {session.regions[index].where for index in outcome.ran(candidate)}


CASES = [(name, "aot") for name in NETS]
CASES += [("no gradient first", "native")]
CASES += [(name, "native") for name in ("item in a condition", "item in arithmetic", "GRU", "mask")]


@pytest.mark.parametrize(
    ("name", "candidate"), [*CASES, pytest.param("no gradient first", "inductor", marks=pytest.mark.thorough)]
)
def test_what_lies_around_a_break_is_compiled(name: str, candidate: str) -> None:
    make, batch, num_places = NETS[name]
    outcome = compare(training(make, batch), candidate=candidate, tolerance=1e-6)
    places = compiled_places(outcome, candidate)
    assert len(places) >= num_places, f"{places} of {outcome.reasons()}"
    assert not any(LIMIT in reason for reason in outcome.reasons()), outcome.reasons()
    num_regions = len(outcome.sessions[0].regions)
    assert num_regions <= 3 * num_places, f"{num_regions} regions for {num_places} places"


def test_a_float_that_a_graph_cannot_take_becomes_a_constant() -> None:
    outcome = compare(training(RaisedToAResult, rows), tolerance=1e-6)
    assert len(outcome.ran("aot")) >= 2, outcome.reasons()


class ScaledByTheCaller(Net):
    def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        return self.last(self.first(x).tanh() * scale + (2 * scale + 1))


@pytest.mark.parametrize("candidate", ["aot", "native", "inductor"])
def test_a_float_that_varies_is_an_input_of_the_compiled_code(candidate: str) -> None:
    def script(wrap: Wrap) -> list[Any]:
        model = wrap(ScaledByTheCaller())
        losses = [as_loss(model(data(6, 8, seed=step), 0.1 + step / 7)) for step in range(STEPS)]
        for loss in losses:
            loss.backward()
        return [*losses, *(value.grad for value in model.parameters())]

    outcome = compare(script, candidate=candidate, tolerance=1e-5)
    (session,) = outcome.sessions
    assert len(session.regions) == len(outcome.ran(candidate)) == 2, outcome.reasons()


def test_a_branch_is_taken_as_in_eager_whenever_the_result_changes() -> None:
    def script(wrap: Wrap) -> list[Any]:
        model = wrap(AskedInACondition())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        outputs = []
        for step in range(STEPS):
            outputs.append(model(data(6, 8, seed=step) * (0.1 if step % 3 else 10.0)))
            as_loss(outputs[-1]).backward()
            optimizer.step()
        return outputs

    outcome = compare(script, tolerance=1e-6)
    assert len(compiled_places(outcome, "aot")) == 3, outcome.reasons()


def test_hooks_of_a_recurrent_layer_run() -> None:
    def script(wrap: Wrap) -> list[Any]:
        model = Recurrent(gru())
        seen: list[torch.Tensor] = []
        model.between.register_forward_hook(lambda m, args, out: (out[0] * 2, out[1]))
        model.between.register_full_backward_hook(lambda m, gin, gout: seen.append(gout[0].clone()))
        values = training(lambda: model, sequences, 5)(wrap)
        return [*values, *seen]

    outcome = compare(script, tolerance=1e-6)
    assert len(compiled_places(outcome, "aot")) >= 2, outcome.reasons()


def test_an_error_of_the_part_left_out_is_eagers() -> None:
    def message(model: nn.Module) -> str:
        with pytest.raises(RuntimeError) as caught:
            model(data(6, 5, 9))
        return str(caught.value)

    torch.manual_seed(3)
    model = RecurrentFirst(nn.GRU(8, 8, batch_first=True))
    expected = message(model)
    agspeed.optimize(model, mode="deterministic", backends=["aot"])
    training(lambda: model, sequences, 4)(lambda target: target)
    session = session_of(model)
    assert session is not None and session.plan == "aot"
    assert message(model) == expected


def test_recurrent_layers_are_left_out_for_agspeed_alone() -> None:
    model = agspeed.optimize(Recurrent(gru()), mode="deterministic", backends=["aot"])
    training(lambda: model, sequences, 4)(lambda target: target)
    seen: list[torch.fx.GraphModule] = []
    with torch._dynamo.config.patch(allow_rnn=True):
        torch.compile(Recurrent(gru()), backend=lambda gm, inputs: seen.append(gm) or gm.forward)(*sequences(0))
    assert len(seen) == 1, "torch.compile takes the whole model, as the user asked for"


def test_what_the_users_own_compile_gave_up_is_compiled() -> None:
    """Dynamo leaves a frame with a recurrent layer to eager. It remembers this for the code object, not for the
    model."""

    def script(wrap: Wrap) -> list[Any]:
        torch.compile(Recurrent(gru()), backend="eager")(*sequences(0))
        return training(lambda: Recurrent(gru()), sequences)(wrap)

    outcome = compare(script, tolerance=1e-6)
    assert len(compiled_places(outcome, "aot")) == 2, outcome.reasons()


def test_a_seed_between_two_parts_is_set_and_is_no_region() -> None:
    class Seeding(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x).relu()
            self.level = hidden.detach().mean().item()
            self.seed = int(torch.seed() % 1000)
            torch.manual_seed(len(x))
            return self.last(functional.dropout(hidden)).tanh()

    outcome = compare(training(Seeding, rows), tolerance=1e-6)
    assert len(outcome.ran("aot")) == len(outcome.sessions[0].regions) >= 2, outcome.reasons()
