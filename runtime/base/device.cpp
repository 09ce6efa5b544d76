// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/device.h"

#include <charconv>

#include "runtime/base/format.h"

namespace agspeed {

std::string toString(const Device& device) { return device.isHost() ? "cpu" : formatText("cuda:{}", device.index); }

StatusOr<Device> deviceFromString(std::string_view text) {
  constexpr std::string_view kCuda = "cuda";
  if (text == "cpu") return Device{};
  if (text == kCuda) return Device{Device::Kind::kCuda, 0};
  if (text.starts_with(kCuda) && text.size() > kCuda.size() + 1 && text[kCuda.size()] == ':') {
    Device device{Device::Kind::kCuda, 0};
    const char* end = text.data() + text.size();
    const auto [read, error] = std::from_chars(text.data() + kCuda.size() + 1, end, device.index);
    if (error == std::errc() && read == end && device.index >= 0) return device;
  }
  return unsupported("nothing is compiled for the device \"{}\": graphs run on cpu or on one cuda:N", text);
}

}  // namespace agspeed
