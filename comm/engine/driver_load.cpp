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

namespace agspeed::comm::engine {
namespace {

/// The limits of the time that one sample covers. A call before kShortest has passed returns the previous average. A
/// time above kLongest gives no sample, because the driver had nothing to send in it.
constexpr std::chrono::milliseconds kShortest{10}, kLongest{100};
/// The weight of a new sample in the moving average.
constexpr double kSampleWeight = 0.2;

/// Returns the nanoseconds since the start of this thread in which it ran or waited for a processor. nullopt: the
/// kernel has no counters.
std::optional<uint64_t> busyNanoseconds() {
  const io::FileDescriptor file(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
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

double DriverLoad::busyShare(io::Clock::time_point now) {
  const int thread = gettid();
  const bool isSame = thread == std::exchange(thread_, thread);
  const auto elapsed = now - sampledAt_;
  if (isSame && elapsed < kShortest) return share_;
  const std::optional<uint64_t> busy = busyNanoseconds();
  if (!busy) return share_ = 0;
  if (isSame && elapsed <= kLongest) {
    const double seconds = std::chrono::duration<double>(elapsed).count();
    share_ += kSampleWeight * (std::min(1.0, 1e-9 * static_cast<double>(*busy - busyBefore_) / seconds) - share_);
  }
  sampledAt_ = now;
  busyBefore_ = *busy;
  return share_;
}

}  // namespace agspeed::comm::engine
