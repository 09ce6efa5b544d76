# SPDX-License-Identifier: Apache-2.0
"""AGSPEED_AUTO: scripts that do not call agspeed train captured models, to the weights of eager training."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import agspeed
from agspeed import autoload, native
from agspeed.frontend.live_sessions import live_sessions
from agspeed.frontend.session import Session
from agspeed.frontend.unedited import SEARCH
from tests.python.frontend.shadow import trainers
from tests.python.support.pairs import thorough

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]

Script = Callable[[], list[nn.Module]]
_SEED = 20


@pytest.fixture
def switched_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process as after `import torch` with AGSPEED_AUTO=1."""
    monkeypatch.setattr(torch.optim.Optimizer, "__init__", torch.optim.Optimizer.__init__)  # undone at the end
    monkeypatch.setenv("AGSPEED_MODE", "deterministic")
    monkeypatch.setenv("AGSPEED_BACKENDS", "aot")
    autoload._search_for_every_model()
    yield
    SEARCH.end()


def train(script: Script) -> list[Tensor]:
    """Runs a script and returns the weights and buffers of its models, and a random number drawn after it."""
    torch._dynamo.reset()
    torch.manual_seed(_SEED)
    models = script()
    return [value.detach().clone() for model in models for value in model.state_dict().values()] + [torch.rand(3)]


def check_found(script: Script, request: pytest.FixtureRequest, *names: str) -> list[Session]:
    """Asserts that a script trains to eager's weights with captured models of these classes. Returns the sessions."""
    expected = train(script)
    request.getfixturevalue("switched_on")
    actual = train(script)
    sessions = live_sessions()
    assert sorted(session.target.name for session in sessions) == sorted(names)
    assert [session.plan for session in sessions] == ["aot"] * len(names), [each.reason for each in sessions]
    assert all(session.regions for session in sessions)
    assert len(actual) == len(expected)
    for index, (mine, reference) in enumerate(zip(actual, expected, strict=True)):
        # Graphs may sum in another order than eager.
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-6, msg=f"value {index}, seed {_SEED}")
    assert vars(nn.Module)["_compiled_call_impl"] is None, "the search has not ended"
    return sessions


def loop(model: nn.Module, optimizers: list[torch.optim.Optimizer], num_steps: int = 5) -> None:
    for _ in range(num_steps):
        inputs, labels = trainers.batch()
        cross_entropy(model(inputs), labels).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def plain() -> list[nn.Module]:
    model = trainers.classifier()
    loop(model, [torch.optim.AdamW(model.parameters())])
    return [model]


# --- scripts of many kinds --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "trainer",
    [
        each if each.__name__ in ("accelerate_accumulation", "lightning_clipping", "mean_teacher") else thorough(each)
        for each in trainers.TRAINERS
    ],
)
def test_a_trainer_reaches_the_weights_of_an_explicit_call(
    trainer: Callable[[int], list[nn.Module]], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a candidate that may round otherwise than eager. So it must run from the same call on."""
    if trainer.__name__.startswith("lightning"):
        pytest.importorskip("lightning")
    explicit = train(lambda: trainer(6))
    expected = {session.target.name: session.plan for session in live_sessions()}
    for session in live_sessions():
        session.close()
    monkeypatch.setattr(trainers, "optimized", lambda model: model)
    request.getfixturevalue("switched_on")
    monkeypatch.setenv("AGSPEED_BACKENDS", "native,aot")
    found = train(lambda: trainer(6))
    assert {session.target.name: session.plan for session in live_sessions()} == expected
    assert "eager" not in expected.values()
    assert all(itertools.starmap(torch.equal, zip(explicit, found, strict=True))), f"seed {_SEED}"


@pytest.mark.slow
def test_a_model_of_timm_is_found(request: pytest.FixtureRequest) -> None:
    timm = pytest.importorskip("timm.models.vision_transformer")

    def script() -> list[nn.Module]:
        model = timm.VisionTransformer(img_size=16, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
        for _ in range(5):
            model.train()
            cross_entropy(model(torch.randn(4, 3, 16, 16)), torch.randint(0, 4, (4,))).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            model.eval()
            with torch.no_grad():
                model(torch.randn(4, 3, 16, 16))
        return [model]

    check_found(script, request, "VisionTransformer")


def test_a_lightning_module_that_calls_itself_is_found(request: pytest.FixtureRequest) -> None:
    lightning = pytest.importorskip("lightning")

    class Digits(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x).relu())

        def training_step(self, item: Any) -> Tensor:
            return cross_entropy(self(item[0]), item[1])

        def validation_step(self, item: Any) -> None:
            self(item[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    def script() -> list[nn.Module]:
        module = Digits()
        trainer = lightning.Trainer(
            max_steps=6, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module, trainers.loader(), trainers.loader())
        return [module]

    check_found(script, request, "Digits")


def parameter_groups() -> list[nn.Module]:
    model = trainers.classifier()
    first, rest = list(model[0].parameters()), list(model[1:].parameters())
    loop(model, [torch.optim.SGD([{"params": first, "lr": 0.01}, {"params": rest}], lr=0.1)])
    return [model]


def a_group_that_is_added_later() -> list[nn.Module]:
    model = trainers.classifier()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    optimizer.add_param_group({"params": list(model[1:].parameters())})
    loop(model, [optimizer])
    return [model]


def two_optimizers_of_one_model() -> list[nn.Module]:
    model = trainers.classifier()
    matrices = [value for value in model.parameters() if value.ndim > 1]
    others = [value for value in model.parameters() if value.ndim <= 1]
    loop(model, [torch.optim.SGD(matrices, lr=0.1), torch.optim.AdamW(others)])
    return [model]


def a_frozen_part() -> list[nn.Module]:
    model = trainers.classifier()
    model[0].requires_grad_(False)
    loop(model, [torch.optim.AdamW([value for value in model.parameters() if value.requires_grad])])
    return [model]


def tied_weights() -> list[nn.Module]:
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 4))
    model[2].weight = model[0].weight
    loop(model, [torch.optim.AdamW(model.parameters())])
    return [model]


def an_optimizer_before_the_move() -> list[nn.Module]:
    model = trainers.classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    model.to("cpu", torch.float64)
    for _ in range(5):
        inputs, labels = trainers.batch()
        cross_entropy(model(inputs.double()), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [model]


def an_empty_step_before_training() -> list[nn.Module]:
    """As torch.distributed.checkpoint makes one, to create the optimizer's state."""
    model = trainers.classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()
    with torch.no_grad():
        model(trainers.batch()[0])
    loop(model, [optimizer])
    return [model]


def steps_with_a_closure() -> list[nn.Module]:
    model = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    inputs, labels = trainers.batch()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)
    return [model]


def a_keyword_called_module() -> list[nn.Module]:
    class Net(nn.Linear):
        def forward(self, *, module: Tensor) -> Tensor:
            return super().forward(module)

    model = Net(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        model(module=trainers.batch()[0]).sum().backward()
        optimizer.step()
    return [model]


@pytest.mark.parametrize(
    "script",
    [
        parameter_groups,
        a_group_that_is_added_later,
        two_optimizers_of_one_model,
        a_frozen_part,
        tied_weights,
        an_optimizer_before_the_move,
        an_empty_step_before_training,
        steps_with_a_closure,
        a_keyword_called_module,
    ],
)
def test_a_model_is_found_with(script: Script, request: pytest.FixtureRequest) -> None:
    check_found(script, request, "Net" if script is a_keyword_called_module else "Sequential")


@pytest.mark.parametrize(
    "trainer", [trainers.accelerate_accumulation, trainers.lightning_clipping, trainers.adversarial]
)
def test_a_trainer_reaches_eagers_weights(
    trainer: Callable[[int], list[nn.Module]], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainers, "optimized", lambda model: model)
    names = ["Sequential"] * (2 if trainer is trainers.adversarial else 1)
    check_found(lambda: trainer(6), request, *names)


@pytest.mark.slow
def test_the_trainer_of_transformers_reaches_eagers_weights(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainers, "optimized", lambda model: model)
    check_found(lambda: trainers.transformers_trainer(6), request, "BertForSequenceClassification")


# --- scripts whose model is not sure ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("switched_on")
def test_parts_that_are_called_one_by_one_are_left_alone_with_one_message(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        encoder, decoder = nn.Linear(16, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 16))
        optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
        for _ in range(5):
            inputs, _ = trainers.batch()
            mse_loss(decoder(encoder(inputs)), inputs).backward()
            optimizer.step()
    assert live_sessions() == []
    (said,) = caplog.messages
    assert "Adam trains several modules that the script calls one by one: Linear, Sequential" in said
    assert vars(nn.Module)["_compiled_call_impl"] is None


@pytest.mark.usefixtures("switched_on")
def test_a_loss_with_parameters_leaves_the_model_alone_with_a_message(caplog: pytest.LogCaptureFixture) -> None:
    model, scale = nn.Linear(16, 4), nn.Parameter(torch.ones(()))
    loop(model, [torch.optim.SGD([*model.parameters(), scale], lr=0.1)])
    assert live_sessions() == []
    assert "SGD also trains parameters that are not in Linear" in caplog.text


@pytest.mark.usefixtures("switched_on")
def test_an_optimizer_of_other_tensors_is_named(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.utils.counters.clear()
    model, image = nn.Linear(16, 4), torch.zeros(8, 16, requires_grad=True)
    optimizer = torch.optim.Adam([image])
    for _ in range(5):
        model(image).sum().backward()
        optimizer.step()
    assert live_sessions() == []
    assert "no module that the script calls with gradients holds the parameters of Adam" in caplog.text


@pytest.mark.usefixtures("switched_on")
def test_a_second_optimizer_of_other_tensors_is_no_message(caplog: pytest.LogCaptureFixture) -> None:
    model, temperature = trainers.classifier(), torch.zeros(1, requires_grad=True)
    other = torch.optim.Adam([temperature])
    temperature.sum().backward()
    loop(model, [torch.optim.SGD(model.parameters(), lr=0.1), other])
    assert len(live_sessions()) == 1
    assert caplog.messages == []


# --- models with which the script has dealt itself --------------------------------------------------------------------


def torch_compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


def compiled_in_place(model: nn.Module) -> Any:
    model.compile(backend="eager")
    return model


def with_a_compiled_part(model: nn.Module) -> Any:
    model.add_module("0", torch.compile(model[0], backend="eager"))
    return model


def switched_off(model: nn.Module) -> Any:
    return agspeed.optimize(model, mode="off")


def restored(model: nn.Module) -> Any:
    return agspeed.restore(agspeed.optimize(model))


@pytest.mark.usefixtures("switched_on")
@pytest.mark.parametrize("deal", [torch_compiled, compiled_in_place, with_a_compiled_part, switched_off, restored])
def test_a_model_of_the_scripts_own_is_left_alone(
    deal: Callable[[nn.Module], Any], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    model = deal(trainers.classifier())
    loop(model, [torch.optim.SGD(model.parameters(), lr=0.1)])
    assert live_sessions() == []
    assert caplog.messages == []
    assert "agspeed" not in capfd.readouterr().err


@pytest.mark.usefixtures("switched_on")
@pytest.mark.parametrize("is_first", [True, False], ids=["before the optimizer", "after it"])
def test_an_explicit_call_counts(is_first: bool, caplog: pytest.LogCaptureFixture) -> None:
    model = trainers.classifier()
    if is_first:
        agspeed.optimize(model, numerics="exact")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if not is_first:
        agspeed.optimize(model, numerics="exact")
    loop(model, [optimizer])
    (session,) = live_sessions()
    assert session.settings.numerics == "exact"
    assert session.plan == "aot"
    assert caplog.messages == []


@pytest.mark.usefixtures("switched_on")
def test_the_model_of_an_optimized_step_function_is_left_to_it() -> None:
    model = trainers.classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @agspeed.optimize
    def step(inputs: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(5):
        step(*trainers.batch())
    (session,) = live_sessions()
    assert session.target.name.endswith("step")


@pytest.mark.usefixtures("switched_on")
def test_the_model_of_a_compiled_function_is_left_to_it(caplog: pytest.LogCaptureFixture) -> None:
    model = trainers.classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def loss_of(inputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(model(inputs), labels)

    for _ in range(5):
        loss_of(*trainers.batch()).backward()
        optimizer.step()
    assert live_sessions() == []
    assert caplog.messages == []


# --- what is left behind ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("switched_on")
def test_a_wrong_setting_is_said_and_the_script_trains(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AGSPEED_BACKENDS", "nonsense")
    plain()
    assert live_sessions() == []
    assert "nonsense" in caplog.text
    assert vars(nn.Module)["_compiled_call_impl"] is None


@pytest.mark.usefixtures("switched_on")
def test_a_call_that_raises_ends_like_any_other() -> None:
    model = trainers.classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad(), pytest.raises(RuntimeError):
        model(torch.zeros(3, 5))
    loop(model, [optimizer])
    assert [session.plan for session in live_sessions()] == ["aot"]


@pytest.mark.usefixtures("switched_on")
def test_a_forked_process_does_not_search_for_the_parents_models() -> None:
    model = trainers.classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert vars(nn.Module)["_compiled_call_impl"] is not None
    child = os.fork()
    if child == 0:
        os._exit(0 if vars(nn.Module)["_compiled_call_impl"] is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    loop(model, [optimizer])
    assert len(live_sessions()) == 1


@pytest.mark.usefixtures("switched_on")
def test_an_optimizer_that_is_dropped_leaves_no_search() -> None:
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    nn.Linear(2, 2)(torch.zeros(1, 2))
    assert vars(nn.Module)["_compiled_call_impl"] is None


def test_torchscript_works_during_the_search(switched_on: None) -> None:
    model = trainers.classifier().eval()
    torch.optim.SGD(nn.Linear(2, 2).parameters())  # its model is never called
    inputs, _ = trainers.batch()
    expected = model(inputs)
    assert torch.equal(torch.jit.trace(model, inputs)(inputs), expected)
    assert torch.equal(torch.jit.script(model)(inputs), expected)
