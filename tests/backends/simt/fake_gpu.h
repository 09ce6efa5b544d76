// SPDX-License-Identifier: Apache-2.0
// A GPU of this process without one: the fake driver of tests/runtime/device, opened under the name of NVIDIA's, so
// that product code finds it; its launches are run by the SIMT runner. "Device memory" is any memory of the host.
#pragma once

#include <cstdint>

namespace agspeed::simt::fake_gpu {

/// Starts anew with one GPU of this capability. What has been made before must not be used any more.
void open(int capability = 90);
/// Runs what has been queued on a stream. Returns: why the context is lost, in the driver's words, or nullptr.
const char* synchronize(void* stream);
/// The `after`th next call of `symbol` returns `result`, once.
void fail(const char* symbol, int result, int after = 0);
/// See fakeCudaNumAlive() and fakeCudaNumRun().
int64_t numAlive();
int64_t numRun();
/// Creates a stream, which lives until open().
void* makeStream();

}  // namespace agspeed::simt::fake_gpu
