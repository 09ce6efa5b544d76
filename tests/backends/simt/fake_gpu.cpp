// SPDX-License-Identifier: Apache-2.0
#include "tests/backends/simt/fake_gpu.h"

#include <dlfcn.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "runtime/base/check.h"
#include "runtime/device/cuda/driver.h"
#include "tests/backends/simt/simt_runner.h"
#include "tests/runtime/device/fake_cuda.h"

namespace agspeed::simt::fake_gpu {
namespace {

constexpr int kLaunchFailed = 719;

// The library's internal name is the driver's, so a later attempt to open "libcuda.so.1" finds this library.
template <typename Function>
Function symbol(const char* name) {
  static void* const library = dlopen(FAKE_CUDA, RTLD_NOW);
  AG_CHECK(library != nullptr, "the fake driver is built beside the tests");
  return reinterpret_cast<Function>(dlsym(library, name));
}

int runLaunch(const FakeCudaLaunch* launch, void*) {
  static std::map<std::string, std::unique_ptr<Module>> modules;
  auto [entry, isNew] = modules.try_emplace(launch->ptx);
  if (isNew) {
    auto module = loadModule(launch->ptx);
    if (!module.hasValue()) {
      std::fprintf(stderr, "fake GPU: %s\n", module.status().toString().c_str());
      return kLaunchFailed;
    }
    entry->second = *std::move(module);
  }
  const Status status = entry->second->launch(launch->kernel, {launch->grid[0], launch->grid[1], launch->grid[2]},
                                              {launch->block[0], launch->block[1], launch->block[2]},
                                              launch->sharedBytes, launch->arguments[0]);
  if (!status.isOk()) std::fprintf(stderr, "fake GPU: %s\n", status.toString().c_str());
  return status.isOk() ? 0 : kLaunchFailed;
}

}  // namespace

void open(int capability) {
  symbol<decltype(&fakeCudaReset)>("fakeCudaReset")(1, capability, 0);
  symbol<decltype(&fakeCudaSetHook)>("fakeCudaSetHook")(runLaunch, nullptr);
}

const char* synchronize(void* stream) {
  const int result = symbol<int (*)(void*)>("cuStreamSynchronize")(stream);
  // Another error may just mean that the driver has not been initialised.
  if (!runtime::device::cuda::isSticky(result)) return nullptr;
  const char* text = nullptr;
  symbol<int (*)(int, const char**)>("cuGetErrorString")(result, &text);
  return text == nullptr ? "unknown error" : text;
}

void fail(const char* name, int result, int after) {
  symbol<decltype(&fakeCudaFail)>("fakeCudaFail")(name, result, after);
}

int64_t numAlive() { return symbol<decltype(&fakeCudaNumAlive)>("fakeCudaNumAlive")(); }
int64_t numRun() { return symbol<decltype(&fakeCudaNumRun)>("fakeCudaNumRun")(); }

void* makeStream() {
  void* stream = nullptr;
  AG_CHECK(symbol<int (*)(void**, unsigned)>("cuStreamCreate")(&stream, 0) == 0, "a stream");
  return stream;
}

}  // namespace agspeed::simt::fake_gpu
