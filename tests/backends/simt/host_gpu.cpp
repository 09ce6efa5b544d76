// SPDX-License-Identifier: Apache-2.0
// A module for ctypes that gives this process a simulated GPU, both for torch (torch_on_host.h) and for the driver
// (fake_gpu.h).
#include "tests/backends/simt/fake_gpu.h"
#include "tests/runtime/device/torch_on_host.h"

extern "C" __attribute__((visibility("default"))) void agInstallHostGpu() {
  agspeed::simt::fake_gpu::open();
  agspeed::runtime::device::installTorchOnHost(&agspeed::simt::fake_gpu::synchronize);
}
