# SPDX-License-Identifier: Apache-2.0
"""StepRecord: a fused optimizer step runs unseen only while nothing has changed that could make its numbers wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from agspeed import native

pytestmark = pytest.mark.usefixtures("needs_native")
Groups = list[dict[str, Any]]


def groups() -> Groups:
    """Two groups: weights with gradients, and a bias without."""
    weights = [torch.ones(4, 3).requires_grad_(), torch.ones(2, 3, 4, 5).requires_grad_()]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    options = {"lr": 0.1, "betas": (0.9, 0.999), "weight_decay": 0.0, "fused": None, "initial_lr": 0.1}
    return [{"params": weights, **options}, {"params": [torch.ones(3).requires_grad_()], **options}]


def record(of: Groups) -> Any:
    module: Any = native.load()
    made = module.StepRecord()
    assert made.set(of)
    return made


def transposed(like: Tensor) -> Tensor:
    return torch.ones(tuple(reversed(like.shape))).permute(*reversed(range(like.dim())))


def set_gradient(found: Groups, gradient: Callable[[Tensor], Tensor | None]) -> None:
    parameter = found[0]["params"][0]
    parameter.grad = gradient(parameter)


CHANGES: dict[str, Callable[[Groups], object]] = {
    "a gradient in another layout": lambda found: set_gradient(found, transposed),
    "a sparse gradient": lambda found: set_gradient(found, lambda p: torch.ones_like(p).to_sparse()),
    "no gradient": lambda found: set_gradient(found, lambda p: None),
    "a first gradient": lambda found: setattr(found[1]["params"][0], "grad", torch.ones(3)),
    "a parameter in another layout": lambda found: setattr(found[0]["params"][0], "data", transposed(torch.ones(4, 3))),
    "a parameter of another size": lambda found: setattr(found[1]["params"][0], "data", torch.ones(5)),
    "a parameter of another type": lambda found: setattr(found[1]["params"][0], "data", torch.ones(3).double()),
    "another parameter": lambda found: found[1]["params"].__setitem__(0, torch.ones(3).requires_grad_()),
    "one more parameter": lambda found: found[1]["params"].append(torch.ones(3).requires_grad_()),
    "parameters in another order": lambda found: found[0]["params"].reverse(),
    "a group without parameters": lambda found: found[1]["params"].clear(),
    "one more group": lambda found: found.append(dict(found[0])),
    "one group less": lambda found: found.pop(),
    "another option": lambda found: found[0].update(weight_decay=0.1),
    "a new option": lambda found: found[0].update(maximize=True),
    "an option less": lambda found: found[0].pop("fused"),
    "something else than a tensor": lambda found: found[1]["params"].append(None),
    "no parameters at all": lambda found: found[1].pop("params"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(change: str) -> None:
    found = groups()
    before = record(found)
    assert before.fits(found)
    CHANGES[change](found)
    assert not before.fits(found)


def test_new_gradients_of_the_same_layout_and_another_learning_rate_fit() -> None:
    found = groups()
    before = record(found)
    set_gradient(found, torch.zeros_like)
    found[0].update(lr=0.2, initial_lr=0.2)
    assert before.fits(found)


def test_numbers_of_a_schedule_fit_and_zero_does_not() -> None:
    found = groups()
    found[0].update(weight_decay=0.1, betas=[0.9, 0.999])
    before = record(found)
    found[0].update(weight_decay=0.2, betas=(0.8, 0.99))
    assert before.fits(found)
    for changed in ({"betas": [0.0, 0.99]}, {"betas": [0.8]}, {"weight_decay": 0.0}, {"weight_decay": 1}):
        assert not before.fits([{**found[0], **changed}, found[1]]), changed


def test_a_list_that_changes_in_place_is_noticed() -> None:
    found = groups()
    found[0]["betas"] = [0.9, 0.999]
    before = record(found)
    found[0]["betas"][0] = 0.0
    assert not before.fits(found)


@pytest.mark.parametrize("groups_", [(), None, {}])
def test_groups_that_are_no_list_are_not_recorded(groups_: Any) -> None:
    module: Any = native.load()
    made = module.StepRecord()
    assert not made.set(groups_) and not made.fits(groups_)


@pytest.mark.parametrize("value", [torch.tensor(0.9), (0.9, torch.tensor(0.999)), [0.9, object()], object()])
def test_options_that_may_change_in_place_are_not_recorded(value: object) -> None:
    module: Any = native.load()
    found, made = groups(), module.StepRecord()
    found[0]["betas"] = value
    assert not made.set(found) and not made.fits(found)


def test_sparse_gradients_are_not_recorded() -> None:
    module: Any = native.load()
    found, made = groups(), module.StepRecord()
    CHANGES["a sparse gradient"](found)
    assert not made.set(found) and not made.fits(found)


def test_a_record_keeps_no_parameter_alive_and_fits_no_other() -> None:
    found = groups()
    before = record(found)
    parameter = found[1]["params"].pop()
    gone = parameter.untyped_storage()._weak_ref()
    del parameter
    assert torch.UntypedStorage._expired(gone)
    torch.UntypedStorage._free_weak_ref(gone)
    found[1]["params"].append(torch.ones(3).requires_grad_())
    assert not before.fits(found)


def test_a_forgotten_record_fits_nothing() -> None:
    found = groups()
    before = record(found)
    before.forget()
    assert not before.fits(found)
