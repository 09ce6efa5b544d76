// SPDX-License-Identifier: Apache-2.0
// SendBufferLimit: computes how many unacknowledged bytes of a connection the kernel may hold, sent or not:
//
//   rate * (4 * shortest round trip + 6 ms), at least 32 KiB; above 1 MiB there is no limit
//
// Bytes beyond the bandwidth-delay product wait in queues of the path, of the host's traffic shaper and of the
// receiver. Later frames wait behind these bytes, and queues that overflow drop packets. Above 1 MiB the kernel chooses
// better. A removed limit returns only below 512 KiB.
//
// A limit that is too low would stay too low, because it reduces the measured rate, which determines the next limit.
// With 4 round trips instead of one, the limit can still grow, although the kernel's bookkeeping uses a part of it.
//
// The 6 ms keep both directions of a path busy. Acknowledgements wait behind the frames that the peer sends, so a round
// trip includes the queues of both ends. The shortest round trip does not include these queues. The kernel sends units
// of up to 64 KiB (GSO). If the limit leaves room for one or two units, the end with the shorter queue falls to half
// its rate.
//
// Not thread-safe; no clock of its own.
#pragma once

#include <algorithm>

namespace agspeed::comm::tcp {

class SendBufferLimit {
 public:
  static constexpr double kMinBytes = 32 * 1024, kMaxBytes = 1024 * 1024;

  /// Returns the limit in bytes; 0: no limit.
  int bytes() const { return bytes_; }
  /// Adapts the limit to the connection's recent rate and shortest round trip. A rate of 0 means not known, and changes
  /// nothing. Returns true if the limit has changed.
  bool update(double bytesPerSecond, double roundTripSeconds) {
    if (bytesPerSecond == 0) return false;
    const double wanted = std::max(kMinBytes, bytesPerSecond * (kRoundTrips * roundTripSeconds + kSeconds));
    const bool isUnlimited = wanted > (bytes_ == 0 ? kMaxBytes / 2 : kMaxBytes);
    const bool isNear = bytes_ > 0 && !isUnlimited && wanted > bytes_ / kLess && wanted < bytes_ * kMore;
    const int before = bytes_;
    if (!isNear) bytes_ = isUnlimited ? 0 : static_cast<int>(wanted);
    return bytes_ != before;
  }

 private:
  static constexpr double kRoundTrips = 4, kSeconds = 6e-3;
  /// A change costs a system call. So the limit changes only if it would grow by more than the factor kMore, or shrink
  /// by more than the factor kLess.
  static constexpr double kMore = 1.25, kLess = 2;

  int bytes_ = 0;
};

}  // namespace agspeed::comm::tcp
