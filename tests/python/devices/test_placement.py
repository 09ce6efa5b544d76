# SPDX-License-Identifier: Apache-2.0
"""The device of a target, and the targets that are left to eager."""

from __future__ import annotations

import ctypes.util
from typing import Any

import pytest
import torch

from agspeed.devices import driver, failures, placement
from agspeed.devices.placement import CPU, home_of, why_eager


class OnDevice:
    """The part of a tensor that placement reads. There is no GPU here."""

    def __init__(self, device: str, ndim: int = 2) -> None:
        self.device, self.ndim = torch.device(device), ndim


def on(*devices: str) -> Any:
    return [OnDevice(device) for device in devices]


@pytest.mark.parametrize(
    ("tensors", "home", "reason"),
    [
        (on("cpu", "cpu"), "cpu", None),
        (on("cuda:0", "cuda:0"), "cuda:0", None),
        ([*on("cuda:1"), OnDevice("cpu", ndim=0)], "cuda:1", None),
        ([OnDevice("cpu", ndim=0), *on("cuda:0")], "cuda:0", None),
        (on("cuda:0", "cuda:1"), "cuda:0", "on the device cuda:1 and on cuda:0"),
        (on("cuda:0", "cpu"), "cuda:0", "on the device cpu and on cuda:0"),
        (on("cpu", "cuda:0"), "cpu", "on the device cuda:0 and on cpu"),
        (on("mps"), "mps", "on the device mps, and only"),
        (on("xpu:0"), "xpu:0", "on the device xpu:0, and only"),
        (on("meta"), "meta", "on the device meta, which holds no values"),
        (on("cuda:0", "meta"), "cuda:0", "on the device meta, which holds no values"),
        ([], "cpu", None),
    ],
)
def test_a_target_is_at_home_on_one_device(tensors: Any, home: str, reason: str | None) -> None:
    assert home_of(tensors) == torch.device(home)
    found = why_eager(tensors, home_of(tensors))
    assert found is None if reason is None else found is not None and reason in found, found


def test_numbers_alone_are_at_home_on_the_cpu() -> None:
    assert home_of([torch.ones(())]) == CPU and why_eager([torch.ones(())]) is None
    assert "cuda" in placement.TIMED_DEVICES


@pytest.mark.parametrize(
    ("error", "is_sticky"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), True),
        (RuntimeError("CUDA error: misaligned address"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), False),
        (RuntimeError("CUDA error: invalid argument"), False),
        (RuntimeError("device-side assert"), False),
        (ValueError("CUDA error: misaligned address"), False),
    ],
)
def test_errors_after_which_a_gpu_is_lost_are_known(error: BaseException, is_sticky: bool) -> None:
    assert failures.is_sticky(error) is is_sticky


def test_a_machine_without_a_driver_says_so() -> None:
    found = driver.look("libno_such_driver.so.1")
    assert not found.gpus and "no NVIDIA driver" in found.why_none


def test_a_library_that_is_no_driver_says_so() -> None:
    found = driver.look(ctypes.util.find_library("m") or "libm.so.6")
    assert not found.gpus and "is not a CUDA driver" in found.why_none
