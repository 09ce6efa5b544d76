# SPDX-License-Identifier: Apache-2.0
"""The kernel parts of the GPU check run to their end, on a GPU that the host simulates."""

from __future__ import annotations

import pytest

from benchmarks.gpu_check import kernels
from tests.python.devices import host_gpu

pytestmark = pytest.mark.skipif(not host_gpu.LIBRARY.exists(), reason="libhost_gpu.so is not built")


@pytest.mark.slow
def test_own_kernels_agree_with_the_reference() -> None:
    found = host_gpu.call("benchmarks.gpu_check.kernels:conformance", seconds=120, most_random=4)
    assert found["holds"] and found["left_out"] is None, found
    assert found["figures"] == {"cases": len(kernels.cases()) + 4, "random": 4}


@pytest.mark.slow
def test_bandwidths_are_reported() -> None:
    found = host_gpu.call("benchmarks.gpu_check.kernels:bandwidth", seconds=10, bytes_moved=1 << 15)
    assert found["holds"] and found["figures"].keys() == {
        "copy_bytes_per_second",
        "element-wise",
        "softmax",
        "row sums",
    }


def test_without_a_gpu_the_reason_is_reported() -> None:
    found = kernels.conformance(10.0)
    assert found["holds"] and "no NVIDIA driver" in found["left_out"]
