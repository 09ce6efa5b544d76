// SPDX-License-Identifier: Apache-2.0
// A CUDA driver without a GPU: a shared library with libcuda's entry points (fake_cuda.cpp) and these controls, found
// by dlsym. Device memory is host memory. Streams are queues of operations; none runs before somebody waits for it, and
// then only what that wait reaches, as late as it may: a missing wait shows as wrong numbers. Time is virtual: an
// operation takes what setCost says, an event notes when its stream reaches it.
//
// Kernels are run by a hook. Modules are PTX: of ".entry NAME(" and its ".param" lines the fake reads which kernels
// there are and how large their arguments are; the rest is the hook's.
#pragma once

#include <cstdint>

extern "C" {

/// One launch. arguments: the address of each argument's value, valid during the call.
struct FakeCudaLaunch {
  const char* kernel;
  const char* ptx;
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t sharedBytes;
  void** arguments;
};
/// Runs a launch. Returns: a CUresult; one that is not 0 makes the context lost.
using FakeCudaHook = int (*)(const FakeCudaLaunch*, void* user);

/// What is there. numDevices; capability as 90; computeMode as in CU_DEVICE_ATTRIBUTE_COMPUTE_MODE.
void fakeCudaReset(int numDevices, int capability, int computeMode);
void fakeCudaSetHook(FakeCudaHook hook, void* user);
/// Seconds of virtual time that each further operation takes.
void fakeCudaSetCost(double seconds);
/// The `after`th next call of `symbol` (0: the next) returns `result`, once.
void fakeCudaFail(const char* symbol, int result, int after);
/// What has been made and not been given back: device memory, modules, streams, events, retained contexts.
int64_t fakeCudaNumAlive();
/// Operations that ran since the reset.
int64_t fakeCudaNumRun();
/// Further operations of a stream are recorded, not run: `isCapturing` as cuStreamIsCapturing tells.
void fakeCudaCapture(void* stream, int isCapturing);
}
