// SPDX-License-Identifier: Apache-2.0
// The host as a Device: one stream, work is done when it is issued. Stateless, so one instance serves every thread.
#pragma once

#include "runtime/device/device.h"

namespace agspeed::runtime {

class HostClock final : public Clock {
 public:
  int64_t nowNanoseconds() const override;
};

class HostDevice final : public Device {
 public:
  std::string_view name() const override { return "cpu"; }
  int32_t numStreams() const override { return 1; }
  StatusOr<std::unique_ptr<Stream>> newStream() override;
  StatusOr<std::unique_ptr<Event>> newEvent() override;
  const Clock& clock() const override { return clock_; }

 private:
  HostClock clock_;
};

}  // namespace agspeed::runtime
