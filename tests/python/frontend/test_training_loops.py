# SPDX-License-Identifier: Apache-2.0
"""Ways to write a training loop: each gives eager's results while a compiled candidate really runs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.python.frontend.differential import as_loss, compare, state, train

Wrap = Callable[[Any], Any]


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batches(count: int, batch: int = 6) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(batch, 8, generator=generator) for _ in range(count)]


def plain(wrap: Wrap) -> list[Any]:
    return train(wrap(mlp()))


def batchnorm_and_dropout(wrap: Wrap) -> list[Any]:
    return train(
        wrap(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 4)))
    )


def accumulation_and_clipping(wrap: Wrap) -> list[Any]:
    model = wrap(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    for step, batch in enumerate(batches(8)):
        (as_loss(model(batch)) / 2).backward()
        if step % 2:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05))
            optimizer.step()
            optimizer.zero_grad()
    return [*norms, *state(model)]


def retain_graph(wrap: Wrap) -> list[Any]:
    model = wrap(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(4):
        optimizer.zero_grad()
        loss = as_loss(model(batch))
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
    return state(model)


def double_backward(wrap: Wrap) -> list[Any]:
    model = wrap(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    penalties = []
    for batch in batches(4):
        optimizer.zero_grad()
        batch.requires_grad_()
        output = model(batch)
        (gradient,) = torch.autograd.grad(output.sum(), batch, create_graph=True)
        penalty = gradient.square().mean()
        (as_loss(output) + penalty).backward()
        optimizer.step()
        penalties.append(penalty.detach())
    return [*penalties, *state(model)]


def double_backward_with_dropout(wrap: Wrap) -> list[Any]:
    model = wrap(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(4):
        optimizer.zero_grad()
        batch.requires_grad_()
        (gradient,) = torch.autograd.grad(model(batch).sum(), batch, create_graph=True)
        gradient.square().sum().backward()
        optimizer.step()
    return state(model)


def two_forwards_before_one_backward(wrap: Wrap) -> list[Any]:
    model = wrap(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = batches(4), batches(4)[::-1]
    for one, other in zip(first, second, strict=True):
        optimizer.zero_grad()
        (as_loss(model(one)) + as_loss(model(other))).backward()
        optimizer.step()
    return state(model)


def gan(wrap: Wrap) -> list[Any]:
    generator, critic = wrap(mlp()), wrap(nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Linear(8, 1)))
    generator_step = torch.optim.Adam(generator.parameters(), lr=0.01)
    critic_step = torch.optim.Adam(critic.parameters(), lr=0.01)
    for noise in batches(5):
        critic_step.zero_grad()
        (critic(torch.ones(6, 4)).mean() - critic(generator(noise).detach()).mean()).backward()
        critic_step.step()
        generator_step.zero_grad()
        critic(generator(noise)).mean().backward()
        generator_step.step()
    return [*state(generator), *state(critic)]


def train_and_evaluate(wrap: Wrap) -> list[Any]:
    model = wrap(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for batch in batches(5):
        model.train()
        optimizer.zero_grad()
        as_loss(model(batch)).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            seen.append(model(batch))
        with torch.inference_mode():
            seen.append(model(batch).clone())
        seen.append(model(batch).detach())
    return [*seen, *state(model)]


def tied_weights(wrap: Wrap) -> list[Any]:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 8)
            self.out = nn.Linear(8, 11, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.out(torch.tanh(self.embed(tokens)))  # type: ignore[no-any-return]

    model = wrap(Tied())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.randint(0, 11, (4, 5), generator=torch.Generator().manual_seed(1))
    for _ in range(4):
        optimizer.zero_grad()
        as_loss(model(tokens)).backward()
        optimizer.step()
    return state(model)


def freeze_and_unfreeze(wrap: Wrap) -> list[Any]:
    model = wrap(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, batch in enumerate(batches(9)):
        model[0].requires_grad_(step // 3 != 1)
        optimizer.zero_grad()
        as_loss(model(batch)).backward()
        optimizer.step()
    return state(model)


def parameter_added_while_training(wrap: Wrap) -> list[Any]:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return x

    model = wrap(Growing())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, batch in enumerate(batches(6)):
        if step == 3:
            model.layers.append(nn.Linear(8, 8))
            optimizer.add_param_group({"params": model.layers[1].parameters()})
        optimizer.zero_grad()
        as_loss(model(batch)).backward()
        optimizer.step()
    return state(model)


def load_state_while_training(wrap: Wrap) -> list[Any]:
    model = wrap(mlp())
    kept = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, batch in enumerate(batches(6)):
        if step == 3:
            model.load_state_dict(kept)
        optimizer.zero_grad()
        as_loss(model(batch)).backward()
        optimizer.step()
    return state(model)


def ema_copy(wrap: Wrap) -> list[Any]:
    model = wrap(mlp())
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(5):
        optimizer.zero_grad()
        as_loss(model(batch)).backward()
        optimizer.step()
        with torch.no_grad():
            for kept, now in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(now, 0.1)
    return [average(batches(1)[0]).detach(), *state(average), *state(model)]


def to_double_after(wrap: Wrap) -> list[Any]:
    model = wrap(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, batch in enumerate(batches(6)):
        if step == 3:
            model.to(torch.float64)
        optimizer.zero_grad()
        as_loss(model(batch.to(model[0].weight.dtype))).backward()
        optimizer.step()
    return state(model)


def lbfgs(wrap: Wrap) -> list[Any]:
    model = wrap(mlp())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    for batch in batches(4):

        def closure(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = as_loss(model(batch))
            loss.backward()
            return loss

        optimizer.step(closure)
    return state(model)


def no_optimizer_at_all(wrap: Wrap) -> list[Any]:
    model = wrap(mlp())
    for batch in batches(8):
        as_loss(model(batch)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    return state(model)


def checkpoint_around_the_model(wrap: Wrap) -> list[Any]:
    model = wrap(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(4):
        optimizer.zero_grad()
        as_loss(checkpoint(model, batch, use_reentrant=False)).backward()
        optimizer.step()
    return state(model)


def heads_trained_in_turn(wrap: Wrap) -> list[Any]:
    """A head that a step leaves out gets no gradient. A gradient of zeros would let its weights decay."""

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.first, self.second = mlp(), nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            features = torch.tanh(self.body(x))
            return self.first(features), self.second(features)

    model = wrap(TwoHeads())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    missing = []
    for step, batch in enumerate(batches(6)):
        optimizer.zero_grad()
        as_loss(model(batch)[step % 2]).backward()
        missing.append([name for name, parameter in model.named_parameters() if parameter.grad is None])
        optimizer.step()
    return [*missing, *state(model)]


COMPILED = [
    plain,
    batchnorm_and_dropout,
    accumulation_and_clipping,
    retain_graph,
    double_backward,
    double_backward_with_dropout,
    two_forwards_before_one_backward,
    gan,
    train_and_evaluate,
    tied_weights,
    freeze_and_unfreeze,
    parameter_added_while_training,
    load_state_while_training,
    ema_copy,
    to_double_after,
    lbfgs,
    no_optimizer_at_all,
    checkpoint_around_the_model,
    heads_trained_in_turn,
]


@pytest.mark.parametrize("script", COMPILED, ids=lambda script: script.__name__)
def test_loop_trains_as_eager_with_a_compiled_candidate(script: Callable[[Wrap], list[Any]]) -> None:
    tolerance = 1e-5 if "double_backward" in script.__name__ else 0.0
    outcome = compare(script, tolerance=tolerance)
    assert outcome.ran("aot"), outcome.reasons()


def autocast_bf16(wrap: Wrap) -> list[Any]:
    model = wrap(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = as_loss(model(batch))
        loss.backward()
        optimizer.step()
    return state(model)


def grad_scaler(wrap: Wrap) -> list[Any]:
    model = wrap(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for batch in batches(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = as_loss(model(batch))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    return [*state(model), scaler.get_scale()]


@pytest.mark.parametrize("script", [autocast_bf16, grad_scaler], ids=lambda script: script.__name__)
def test_mixed_precision_trains_as_eager(script: Callable[[Wrap], list[Any]]) -> None:
    outcome = compare(script, tolerance=1e-2)
    assert outcome.ran("aot"), outcome.reasons()
