# SPDX-License-Identifier: Apache-2.0
"""Facts that `agspeed doctor` and sessions get from a driver. The driver is a fake here."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from agspeed.cli import gpu_checks
from agspeed.devices import driver

FAKE = Path(__file__).parents[2] / "runtime" / "device" / "libfake_cuda.so"
pytestmark = pytest.mark.skipif(not FAKE.exists(), reason="libfake_cuda.so is not built")


def look(num_devices: int, capability: int = 90, compute_mode: int = 0) -> driver.Driver:
    ctypes.CDLL(str(FAKE)).fakeCudaReset(num_devices, capability, compute_mode)
    return driver.look.__wrapped__(str(FAKE))


def test_a_gpu_is_described() -> None:
    found = look(2)
    assert found.cuda == "13.0" and not found.why_none
    assert found.gpus[0] == ("Fake GPU", (9, 0), 1 << 30, "default") and len(found.gpus) == 2


def test_a_driver_without_a_gpu_says_so() -> None:
    assert "no CUDA-capable device is detected (error 100)" in look(0).why_none


@pytest.mark.parametrize(
    ("capability", "compute_mode", "status", "detail"),
    [(90, 0, "ok", "sm_90"), (70, 0, "warn", "older than sm_75"), (80, 3, "warn", "admits no compile process")],
)
def test_the_doctor_judges_gpus(
    monkeypatch: pytest.MonkeyPatch, capability: int, compute_mode: int, status: str, detail: str
) -> None:
    found = look(1, capability, compute_mode)
    monkeypatch.setattr(driver, "look", lambda: found)
    monkeypatch.setattr(gpu_checks, "probe", lambda: {"torch": "2.11.0", "cuda": True, "gpu_free_bytes": [1 << 29]})
    lines = {check.name: check for check in gpu_checks.gpus()}
    assert lines["gpu 0"].status == status and detail in lines["gpu 0"].detail, lines
    assert "serves CUDA 13.0" in lines["gpu driver"].detail and "ptx tools" in lines


def test_the_doctor_says_why_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "look", lambda: driver.Driver((), "", "no NVIDIA driver: it is not installed"))
    [line] = gpu_checks.gpus()
    assert line.status == "ok" and "no NVIDIA driver" in line.detail
