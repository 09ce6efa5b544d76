// SPDX-License-Identifier: Apache-2.0
// A simulated GPU for this process: the fake driver of tests/runtime/device. It is opened under the name of NVIDIA's
// driver, so that product code finds it. The SIMT runner runs its launches. "Device memory" is any memory of the host.
#pragma once

#include <cstdint>

namespace agspeed::simt::fake_gpu {

/// Resets the driver to one GPU of this capability. Requires: objects made before are not used any more.
void open(int capability = 90);
/// Runs all queued work of a stream. Returns nullptr, or the driver's reason if the context is lost.
const char* synchronize(void* stream);
/// The `after`th next call of `symbol` returns `result`, once.
void fail(const char* symbol, int result, int after = 0);
/// See fakeCudaNumAlive() and fakeCudaNumRun().
int64_t numAlive();
int64_t numRun();
/// Creates a stream, which lives until open().
void* makeStream();

}  // namespace agspeed::simt::fake_gpu
