# SPDX-License-Identifier: Apache-2.0
"""elastic.State: what it refuses, and what it sends beside the values."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from agspeed import elastic
from agspeed.elastic import attachments
from agspeed.elastic import state as state_module
from agspeed.errors import UserError


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def fully(model: nn.Linear, mesh: DeviceMesh) -> None:
    fully_shard(model, mesh=mesh)


def tensor_parallel(model: nn.Linear, mesh: DeviceMesh) -> None:
    model.weight = nn.Parameter(distribute_tensor(model.weight, mesh, [Shard(0)]))


@pytest.mark.parametrize("shard", [fully, tensor_parallel])
@pytest.mark.parametrize("is_before", [True, False])
def test_a_sharded_model_is_refused(
    mesh: DeviceMesh, shard: Callable[[nn.Linear, DeviceMesh], None], is_before: bool
) -> None:
    """Before the training begins, or in the training function: then after the first step."""
    state = elastic.State(net=nn.Linear(4, 4))
    if is_before:
        shard(state.net, mesh)

    @elastic.run
    def train(state: elastic.State) -> None:
        assert not is_before
        shard(state.net, mesh)
        state.advance()
        raise AssertionError("the step was counted")

    with pytest.raises(
        UserError, match=r"State\(net=...\): the model is sharded over ranks \(DTensor\).*without elastic"
    ):
        train(state)
    assert state.num_steps == 0


def test_a_whole_model_is_not_refused(mesh: DeviceMesh) -> None:
    elastic.run(lambda state: state.advance())(state := elastic.State(net=nn.Linear(4, 4)))
    assert state.num_steps == 1


class Notes:
    """An attachment that says whose module it has seen, and notes what it gets."""

    def __init__(self) -> None:
        self.got: list[object] = []

    def of(self, module: nn.Module) -> object:
        return ["decided", type(module).__name__]

    def put(self, module: nn.Module, value: object) -> None:
        self.got.append((module, value))


def test_what_is_attached_to_a_module_travels_with_its_state(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "_attachments", {})
    notes = Notes()
    attachments.attach("notes", notes)
    state = elastic.State(net=nn.Linear(4, 4), epoch=3)
    state.take_over(0)
    assert notes.got == [(state.net, ["decided", "Linear"])]


def test_a_process_leaves_out_what_it_does_not_know_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes may load the part that attaches something at different times."""
    monkeypatch.setattr(attachments, "_attachments", {})
    net = nn.Linear(4, 4)
    attachments.put_attached({"net": net}, {"notes": {"net": 1}})
    attachments.attach("notes", notes := Notes())
    attachments.put_attached({"net": net}, {})
    assert notes.got == []
    attachments.put_attached({"net": net}, {"notes": {"net": 2}})
    assert notes.got == [(net, 2)]


def test_progress_is_reported_after_each_step_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[tuple[int, int, dict[str, float]]] = []
    monkeypatch.setattr(
        state_module, "report_progress", lambda step, num_steps, metrics: reports.append((step, num_steps, metrics))
    )
    state = elastic.State()
    state.advance()
    state.report_progress(num_steps=3)
    state.goodput.note_epoch(2, 1)
    state.advance()
    counters = {"membership_epochs": 2, "interrupted_steps": 1, "change_seconds": 0}
    assert reports == [(2, 3, counters)]


def test_a_training_without_steps_is_refused() -> None:
    with pytest.raises(UserError, match="num_steps: 0 is below 1"):
        elastic.State().report_progress(num_steps=0)
