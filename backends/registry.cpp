// SPDX-License-Identifier: Apache-2.0
// The targets of this build, one row each.
#include <iterator>

#include "backends/backend.h"
#include "backends/cpu/backend.h"
#include "backends/null/backend.h"
#include "backends/nvptx/kernel_library.h"
#include "backends/reference/backend.h"

namespace agspeed::backends {
namespace {

constexpr Backend kNvptx = {"nvptx", "kernels for NVIDIA's GPUs", /*computes=*/true, Device::Kind::kCuda,
                            nvptx::buildKernels};

// keep-sorted
constexpr Backend kBackends[] = {
    cpu::kBackend,
    kNvptx,
    null::kBackend,
    reference::kBackend,
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

StatusOr<const Backend*> findBackend(std::string_view name, const Device& device) {
  if (name.empty()) return device.isHost() ? &cpu::kBackend : &kNvptx;
  std::string known;
  for (const Backend& backend : kBackends) {
    if (backend.name == name) {
      if (backend.device == device.kind) return &backend;
      return invalidArgument("the target \"{}\" has no kernels for the device {}", name, toString(device));
    }
    known += (known.empty() ? "" : ", ") + std::string(backend.name);
  }
  return invalidArgument("there is no target \"" + std::string(name) + "\"; known are " + known);
}

}  // namespace agspeed::backends
