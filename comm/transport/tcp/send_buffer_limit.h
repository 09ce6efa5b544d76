// SPDX-License-Identifier: Apache-2.0
// SendBufferLimit: computes how many bytes of a connection the kernel may hold, sent or not.
//
// Bytes beyond the bandwidth-delay product wait in queues of the path, of the host's shaper and of the receiver. Later
// frames wait behind them, and queues that overflow drop packets. So the limit is rate * (4 round trips + 6 ms), at
// least 32 KiB. The limit itself may reduce the measured rate, and the rate determines the limit. With 4 round trips
// instead of one, the limit can still grow, although the kernel's bookkeeping uses a part of it. Above 1 MiB there is
// no limit, because the kernel chooses better on such paths.
//
// The 6 ms keep both directions of a path busy. Acknowledgements wait behind the frames that the peer sends, so a
// round trip includes the queues of both ends. The shortest round trip does not show them. The kernel sends units of up
// to 64 KiB. If the limit leaves room for one or two units, the end with the shorter queue falls to half its rate.
//
// Not thread-safe; no clock of its own.
#pragma once

#include <algorithm>

namespace agspeed::comm::tcp {

class SendBufferLimit {
 public:
  static constexpr double kMinBytes = 32 * 1024, kMaxBytes = 1024 * 1024;

  /// Returns the limit; 0: no limit.
  int bytes() const { return bytes_; }
  /// Adapts the limit to the connection's recent rate; a rate of 0 means not known. Returns true if the limit has
  /// changed.
  bool follow(double bytesPerSecond, double roundTripSeconds) {
    if (bytesPerSecond == 0) return false;
    const double wanted = std::max(kMinBytes, bytesPerSecond * (kRoundTrips * roundTripSeconds + kSeconds));
    const bool isLifted = wanted > (bytes_ == 0 ? kMaxBytes / 2 : kMaxBytes);
    const bool isNear = bytes_ > 0 && !isLifted && wanted > bytes_ / kLess && wanted < bytes_ * kMore;
    const int before = bytes_;
    if (!isNear) bytes_ = isLifted ? 0 : static_cast<int>(wanted);
    return bytes_ != before;
  }

 private:
  static constexpr double kRoundTrips = 4, kSeconds = 6e-3;
  /// The limit changes only if it would grow by more than the factor kMore, or shrink by more than kLess, because a
  /// change costs a system call.
  static constexpr double kMore = 1.25, kLess = 2;

  int bytes_ = 0;
};

}  // namespace agspeed::comm::tcp
