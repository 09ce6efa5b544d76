// SPDX-License-Identifier: Apache-2.0
// A CUDA driver without a GPU: a shared library with libcuda's entry points (fake_cuda.cpp) and the controls below,
// found by dlsym.
//
// Device memory is host memory. Streams are queues of operations. An operation runs only when a wait requires it, as
// late as possible, so a missing wait shows as wrong numbers. Time is virtual: an operation takes the time that
// fakeCudaSetCost() sets, and an event records when its stream reaches it.
//
// A hook runs the kernels. Modules are PTX. The fake reads only the ".entry NAME(" lines and their ".param" lines,
// which give the kernels and the sizes of their arguments. The rest is up to the hook.
#pragma once

#include <cstdint>

extern "C" {

/// One launch. `arguments` holds the address of each argument's value, valid during the call.
struct FakeCudaLaunch {
  const char* kernel;
  const char* ptx;
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t sharedBytes;
  void** arguments;
};
/// Runs a launch. Returns a CUresult. A result other than 0 makes the context lost.
using FakeCudaHook = int (*)(const FakeCudaLaunch*, void* user);

/// Resets the driver. `capability` is 90 for 9.0; `computeMode` is a value of CU_DEVICE_ATTRIBUTE_COMPUTE_MODE.
void fakeCudaReset(int numDevices, int capability, int computeMode);
void fakeCudaSetHook(FakeCudaHook hook, void* user);
/// Seconds of virtual time that each further operation takes.
void fakeCudaSetCost(double seconds);
/// The `after`th next call of `symbol` (0: the next) returns `result`, once.
void fakeCudaFail(const char* symbol, int result, int after);
/// The number of objects that exist: device memory, modules, streams, events, retained contexts.
int64_t fakeCudaNumAlive();
/// The number of operations that ran since the reset.
int64_t fakeCudaNumRun();
/// While `isCapturing`, a stream records its operations instead of running them; cuStreamIsCapturing returns the value.
void fakeCudaCapture(void* stream, int isCapturing);
}
