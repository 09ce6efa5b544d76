# SPDX-License-Identifier: Apache-2.0
"""Ways to train under DistributedDataParallel, for comparing compiled backwards in stages with plain ones.

Each case is a function (Setup) -> None that trains modules which it has wrapped with `setup.wrap`. `run` calls it twice
at every rank, plainly and optimized, with the same weights and batches.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed._composable import replicate
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import agspeed
from agspeed.distributed.layouts import Layout
from agspeed.distributed.reducers import WrapperLayouts, why_left_alone
from agspeed.frontend.session import session_of
from agspeed.reporting import summary

WIDTH = 24
STEPS = 20
BUCKET_MB = 0.004
"""Gradients of a hidden layer take 2.5 KiB: several buckets, and stages within them."""
_LAYOUTS = [Layout(1, 1), None, Layout(3 << 10, 6 << 10), Layout(1 << 20, 1 << 20)]
"""A bucket for each gradient, the wrapper's own, some, and one."""


class Net(nn.Module):
    """`Block`s between two linear layers."""

    def __init__(self, depth: int = 4, block: Callable[[], nn.Module] | None = None) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList([block() if block else Block() for _ in range(depth)])
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.norm(self.linear(x)))


@dataclass
class Setup:
    """How one of the two trainings is done."""

    candidate: str | None
    """None: plainly."""
    targets: list[nn.Module] = field(default_factory=list)
    wrapped: list[nn.Module] = field(default_factory=list)
    num_later_stages: int = 0
    """Nodes of stages behind the first that a backward went through, in all steps."""
    changes_layouts: bool = False
    """Wrappers get another bucket layout after every other step."""
    num_changes: int = 0
    num_steps: int = 0
    """Of optimizers."""

    def optimized(self, module: nn.Module) -> nn.Module:
        if self.candidate is None:
            return module
        self.targets.append(agspeed.optimize(module, mode="deterministic", backends=[self.candidate]))
        return module

    def wrap(self, module: nn.Module, *, outside: bool = False, **options: Any) -> DistributedDataParallel:
        """DDP around the optimized module, or `outside` the other way round."""
        options = {"bucket_cap_mb": BUCKET_MB, **options}
        if not outside:
            self.optimized(module)
        ddp = DistributedDataParallel(module, **options)
        self.wrapped.append(self.optimized(ddp) if outside else ddp)
        self.change_layouts(ddp)
        return ddp

    def change_layouts(self, ddp: DistributedDataParallel) -> None:
        """At the first training forward after every other reduced step, where this wrapper's may be changed."""
        layouts, left = WrapperLayouts(ddp), deque(2 * _LAYOUTS)
        num_seen = 0

        def change(*_: Any) -> None:
            nonlocal num_seen
            if not torch.is_grad_enabled() or not self.changes_layouts or why_left_alone(ddp) is not None:
                return
            num_steps = self.num_steps
            if num_steps >= num_seen + 2 and left:
                num_seen = num_steps
                layouts.change(left.popleft())
                self.num_changes += 1

        ddp.register_forward_pre_hook(change)

    def sgd(self, module: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
        optimizer.register_step_post_hook(self._count_step)
        return optimizer

    def _count_step(self, *_: Any) -> None:
        self.num_steps += 1

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        self.count_stages(loss)
        loss.backward(**options)

    def count_stages(self, loss: torch.Tensor) -> None:
        seen, left = set(), [loss.grad_fn]
        while left:
            node = left.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            self.num_later_stages += "BackwardStage" in node.name()
            left += [following for following, _ in node.next_functions]


def batches(count: int = STEPS) -> Iterator[torch.Tensor]:
    """Different ones at every rank."""
    generator = torch.Generator().manual_seed(70 + dist.get_rank())
    for _ in range(count):
        yield torch.randn(8, WIDTH, generator=generator)


def _train(setup: Setup, ddp: nn.Module, *, keep: bool = False, before_step: Callable[[], None] | None = None) -> None:
    optimizer = setup.sgd(ddp)
    for batch in batches():
        optimizer.zero_grad(set_to_none=not keep)
        setup.backward(ddp(batch).square().mean())
        if before_step is not None:
            before_step()
        optimizer.step()


# --- what DDP is asked for --------------------------------------------------------------------------------------------


def plain(setup: Setup) -> None:
    _train(setup, setup.wrap(Net()))


def wrapped_first(setup: Setup) -> None:
    _train(setup, setup.wrap(Net(), outside=True))


def replicated(setup: Setup) -> None:
    module = Net()
    replicate(module, bucket_cap_mb=BUCKET_MB)
    setup.wrapped.append(setup.optimized(module))
    _train(setup, module)


def no_sync(setup: Setup) -> None:
    ddp = setup.wrap(Net())
    optimizer = setup.sgd(ddp)
    for index, batch in enumerate(batches()):
        is_last = index % 3 == 2
        with contextlib.nullcontext() if is_last else ddp.no_sync():
            setup.backward(ddp(batch).square().mean())
        if is_last:
            optimizer.step()
            optimizer.zero_grad()


def kept_gradients(setup: Setup) -> None:
    _train(setup, setup.wrap(Net()), keep=True)


def bucket_views(setup: Setup) -> None:
    _train(setup, setup.wrap(Net(), gradient_as_bucket_view=True), keep=True)


def static_graph(setup: Setup) -> None:
    _train(setup, setup.wrap(Net(), static_graph=True))


class _Skips(Net):
    """May leave a block out."""

    def forward(self, x: torch.Tensor, skip: bool = False) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            if not (skip and number == 1):
                x = block(x)
        return self.head(x)


def find_unused(setup: Setup) -> None:
    """In every other step, and not in the same ones at neighbouring ranks."""
    ddp = setup.wrap(_Skips(), find_unused_parameters=True)
    optimizer = setup.sgd(ddp)
    for index, batch in enumerate(batches()):
        optimizer.zero_grad()
        setup.backward(ddp(batch, (index + dist.get_rank()) % 2 == 1).square().mean())
        optimizer.step()


def unused_module(setup: Setup) -> None:
    module = Net()
    module.never_called = nn.Linear(WIDTH, WIDTH)
    _train(setup, setup.wrap(module, find_unused_parameters=True))


def stateless_hook(setup: Setup) -> None:
    ddp = setup.wrap(Net())
    ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    _train(setup, ddp)


def power_sgd(setup: Setup) -> None:
    """With one bucket: the hook starts collectives in callbacks, in an order that ranks need not share."""
    ddp = setup.wrap(Net(), bucket_cap_mb=4 * BUCKET_MB)
    state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=4)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    _train(setup, ddp)


def joined(setup: Setup) -> None:
    ddp = setup.wrap(Net())
    optimizer = setup.sgd(ddp)
    with Join([ddp]):
        for batch in batches(STEPS + 3 * dist.get_rank()):
            optimizer.zero_grad()
            setup.backward(ddp(batch).square().mean())
            optimizer.step()


# --- what backward is asked for ---------------------------------------------------------------------------------------


def tensor_hooks(setup: Setup) -> None:
    ddp = setup.wrap(Net())
    for parameter in ddp.parameters():
        parameter.register_hook(lambda gradient: gradient * 0.5)
    _train(setup, ddp)


def post_accumulate_hooks(setup: Setup) -> None:
    ddp = setup.wrap(Net())
    for parameter in ddp.parameters():
        parameter.register_post_accumulate_grad_hook(_halve_gradient)
    _train(setup, ddp)


def _halve_gradient(parameter: torch.Tensor) -> None:
    parameter.grad.mul_(0.5)


def retain_graph(setup: Setup) -> None:
    ddp = setup.wrap(Net())
    optimizer = setup.sgd(ddp)
    for batch in batches():
        optimizer.zero_grad()
        with ddp.no_sync():
            loss = ddp(batch).square().mean()
            setup.backward(loss, retain_graph=True)
            setup.backward(loss)
        setup.backward(ddp(batch).square().mean())
        optimizer.step()


def double_backward(setup: Setup) -> None:
    """A gradient penalty, whose graph does not reach the parameters a second time in the reduced backward."""
    ddp = setup.wrap(Net())
    optimizer = setup.sgd(ddp)
    for batch in batches():
        optimizer.zero_grad()
        x = batch.clone().requires_grad_()
        with ddp.no_sync():
            output = ddp(x)
            (gradient,) = torch.autograd.grad(output.sum(), x, create_graph=True)
            gradient.square().mean().backward()
        setup.backward(ddp(x).square().mean())
        optimizer.step()


def only_some_inputs(setup: Setup) -> None:
    """`backward(inputs=)` and `autograd.grad` for a parameter of the last layer, between ordinary steps."""
    module = Net()
    ddp = setup.wrap(module)
    optimizer = setup.sgd(ddp)
    for batch in batches():
        optimizer.zero_grad()
        with ddp.no_sync():
            loss = ddp(batch).square().mean()
            (early,) = torch.autograd.grad(loss, module.head.weight, retain_graph=True)
            loss.backward(inputs=[module.head.weight])
        assert torch.equal(module.head.weight.grad, early)
        assert all(p.grad is None or not p.grad.any() for p in module.blocks.parameters())
        optimizer.zero_grad()
        setup.backward(ddp(batch).square().mean())
        optimizer.step()


def two_forwards(setup: Setup) -> None:
    ddp = setup.wrap(Net())
    optimizer = setup.sgd(ddp)
    for batch in batches():
        optimizer.zero_grad()
        setup.backward((ddp(batch) - ddp(batch + 1)).square().mean())
        optimizer.step()


def clipping(setup: Setup) -> None:
    ddp = setup.wrap(Net())
    _train(setup, ddp, before_step=lambda: nn.utils.clip_grad_norm_(ddp.parameters(), 0.1))


# --- what is trained --------------------------------------------------------------------------------------------------


def shared_parameter(setup: Setup) -> None:
    module = Net()
    module.blocks[2].linear.weight = module.blocks[0].linear.weight
    _train(setup, setup.wrap(module))


class _Outside(nn.Module):
    """A parameter that the optimized part does not see."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((WIDTH,), 1.5))
        self.net = setup.optimized(Net())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x * self.scale)


def parameter_outside(setup: Setup) -> None:
    ddp = DistributedDataParallel(_Outside(setup), bucket_cap_mb=BUCKET_MB)
    setup.wrapped.append(ddp)
    setup.change_layouts(ddp)
    _train(setup, ddp)


def freezing(setup: Setup) -> None:
    module = Net()
    for parameter in module.blocks[1].parameters():
        parameter.requires_grad_(False)
    _train(setup, setup.wrap(module))


class _Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = Block(), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def checkpointed(setup: Setup) -> None:
    _train(setup, setup.wrap(Net(block=lambda: _Checkpointed(False))))


def checkpointed_reentrant(setup: Setup) -> None:
    """Of inputs that require grad: a reentrant checkpoint has no gradients otherwise."""
    ddp = setup.wrap(Net(block=lambda: _Checkpointed(True)), static_graph=True)
    optimizer = setup.sgd(ddp)
    for batch in batches():
        optimizer.zero_grad()
        setup.backward(ddp(batch.requires_grad_()).square().mean())
        optimizer.step()


class _WithBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.linear(x)))


def batch_norm(setup: Setup) -> None:
    _train(setup, setup.wrap(Net(block=_WithBatchNorm)))


def autocast(setup: Setup) -> None:
    ddp = setup.wrap(Net())
    optimizer = setup.sgd(ddp)
    for batch in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = ddp(batch).float().square().mean()
        setup.backward(loss)
        optimizer.step()


def adversarial(setup: Setup) -> None:
    """Two wrapped models; each step of one goes through the other."""
    maker, judge = setup.wrap(Net()), setup.wrap(Net(depth=3))
    widen = torch.linspace(-0.1, 0.1, 5 * WIDTH).reshape(5, WIDTH)
    of_maker, of_judge = setup.sgd(maker), setup.sgd(judge)
    for batch in batches():
        of_judge.zero_grad()
        fake = maker(batch) @ widen
        setup.backward(mse_loss(judge(fake.detach()), torch.zeros(8, 5)))
        of_judge.step()
        of_maker.zero_grad()
        setup.backward(mse_loss(judge(fake), torch.ones(8, 5)))
        of_maker.step()


CASES: dict[str, Callable[[Setup], None]] = {
    case.__name__: case
    for case in (
        plain, wrapped_first, replicated, no_sync, kept_gradients, bucket_views, static_graph, find_unused,
        unused_module, stateless_hook, power_sgd, joined, tensor_hooks, post_accumulate_hooks, retain_graph,
        double_backward, only_some_inputs, two_forwards, clipping, shared_parameter, parameter_outside, freezing,
        checkpointed, checkpointed_reentrant, batch_norm, autocast, adversarial,
    )
}  # fmt: skip


def run(case: str, candidate: str, dtype: str = "float32", changes_layouts: bool = False) -> dict[str, Any]:
    """Returns the weights and buffers of both trainings, and how the optimized one ran. Layouts change in that one."""
    expected, found = Setup(None), Setup(candidate, changes_layouts=changes_layouts)
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        for setup in (expected, found):
            torch.manual_seed(11)
            CASES[case](setup)
    finally:
        torch.set_default_dtype(torch.float32)
    result = {
        "expected": [_state(module) for module in expected.wrapped],
        "found": [_state(module) for module in found.wrapped],
        "num_parameters": [len(list(module.parameters())) for module in found.wrapped],
        "num_later_stages": found.num_later_stages,
        "num_changes": found.num_changes,
        "status": [(agspeed.status(target) == "tuned", _selected(target)) for target in found.targets],
    }
    for target in found.targets:
        agspeed.restore(target)
    return result


def killed_between_stages(folder: str) -> None:
    """Rank 1 dies in a hook in the middle of a backward; what rank 0 raises goes to a file."""
    setup = Setup("aot")
    module = Net()
    ddp = setup.wrap(module)
    _train(setup, ddp)
    if dist.get_rank() == 1:
        module.blocks[2].linear.weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    try:
        _train(setup, ddp)
    except Exception as error:
        Path(folder, "raised").write_text(f"{type(error).__name__}: {error}")
        raise


def report_of_a_group() -> dict[str, Any]:
    """The report's group section, and the sentence that shows it, after a training with "aot"."""
    setup = Setup("aot")
    plain(setup)
    report = agspeed.report(setup.targets[0]).to_dict()
    return {"group": report["group"], "sentence": summary.group(report["group"])}


def _state(module: nn.Module) -> list[torch.Tensor]:
    return [value.detach().clone() for value in (*module.parameters(), *module.buffers())]


def _selected(target: nn.Module) -> list[str]:
    session = session_of(getattr(target, "module", target))
    assert session is not None
    return [f"{region.selected}: {_reason(region)}" for region in session.regions]


def _reason(region: Any) -> str:
    return "; ".join(f"{name} {outcome.state} {outcome.reason}" for name, outcome in region.outcomes.items())
