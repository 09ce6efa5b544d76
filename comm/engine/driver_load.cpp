// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/driver_load.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "comm/io/file_descriptor.h"

namespace agspeed::comm {
namespace {

constexpr std::chrono::milliseconds kPeriod{50};

/// Returns the nanoseconds in which this thread ran or waited for a processor. nullopt: the kernel has no counters.
std::optional<uint64_t> busyNanoseconds() {
  const FileDescriptor file(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
  std::array<char, 80> text;
  const ssize_t length = file.isOpen() ? read(file.get(), text.data(), text.size()) : 0;
  if (length <= 0) return std::nullopt;
  const char* const end = text.data() + length;
  uint64_t ran = 0, waited = 0;
  const auto first = std::from_chars(text.data(), end, ran);
  if (first.ec != std::errc() || first.ptr == end) return std::nullopt;
  if (std::from_chars(first.ptr + 1, end, waited).ec != std::errc()) return std::nullopt;
  return ran + waited;
}

}  // namespace

double DriverLoad::busyShare(Clock::time_point now) {
  const int thread = gettid();
  const bool isSame = thread == std::exchange(thread_, thread);
  if (isSame && now - since_ < kPeriod) return share_;
  const std::optional<uint64_t> busy = busyNanoseconds();
  if (!busy) return share_ = 0;
  const double seconds = std::chrono::duration<double>(now - since_).count();
  if (isSame) share_ = std::min(1.0, 1e-9 * static_cast<double>(*busy - busyBefore_) / seconds);
  since_ = now;
  busyBefore_ = *busy;
  return share_;
}

}  // namespace agspeed::comm
