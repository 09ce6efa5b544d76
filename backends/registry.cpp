// SPDX-License-Identifier: Apache-2.0
// The targets of this build, one row each.
#include <iterator>

#include "backends/backend.h"
#include "backends/cpu/backend.h"
#include "backends/null/backend.h"
#include "backends/reference/backend.h"

namespace agspeed::backends {
namespace {

// keep-sorted
constexpr Backend kBackends[] = {
    cpu::kBackend,
    null::kBackend,
    reference::kBackend,
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

StatusOr<const Backend*> findBackend(std::string_view name) {
  std::string known;
  for (const Backend& backend : kBackends) {
    if (backend.name == name) return &backend;
    known += (known.empty() ? "" : ", ") + std::string(backend.name);
  }
  return invalidArgument("there is no target \"" + std::string(name) + "\"; known are " + known);
}

}  // namespace agspeed::backends
