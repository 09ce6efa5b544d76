// SPDX-License-Identifier: Apache-2.0
#include "runtime/device/host_device.h"

#include <chrono>

namespace agspeed::runtime {
namespace {

class HostEvent final : public Event {};

class HostStream final : public Stream {
 public:
  Status record(Event& event) override { return {}; }
  Status wait(const Event& event) override { return {}; }
  Status synchronize() override { return {}; }
};

}  // namespace

int64_t HostClock::nowNanoseconds() const {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

StatusOr<std::unique_ptr<Stream>> HostDevice::newStream() { return std::unique_ptr<Stream>(new HostStream); }

StatusOr<std::unique_ptr<Event>> HostDevice::newEvent() { return std::unique_ptr<Event>(new HostEvent); }

}  // namespace agspeed::runtime
