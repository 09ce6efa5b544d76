// SPDX-License-Identifier: Apache-2.0
// Device: where a tensor's bytes are and its work runs. GraphSpec and PyTorch use the same names: "cpu", "cuda:0".
// Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace agspeed {

struct Device {
  enum class Kind : uint8_t { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int32_t index = 0;  ///< number of the GPU

  bool isHost() const { return kind == Kind::kCpu; }
  bool operator==(const Device&) const = default;
};

/// "cpu", "cuda:1".
std::string toString(const Device& device);
/// "cuda" alone is the first GPU. Errors: kUnsupported for a device that agspeed does not compile for.
StatusOr<Device> deviceFromString(std::string_view text);

}  // namespace agspeed
