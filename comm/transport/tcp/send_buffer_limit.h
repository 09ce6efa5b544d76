// SPDX-License-Identifier: Apache-2.0
// SendBufferLimit: how many bytes of a connection a kernel may hold, sent or not.
//
// What it holds beyond a round trip's bytes stands in queues of the path, its own shaper's and the receiver's, where
// all that comes later waits behind it and what is too much is dropped. So it holds what the path carries in some round
// trips and a moment. The rate is a measured one, and may itself be that of the limit: a limit that holds a connection
// up has to grow, so there are more round trips in it than a kernel's bookkeeping can take away. On paths that carry
// more than a fixed amount meanwhile the kernel knows better. Not thread-safe; no clock of its own.
#pragma once

#include <algorithm>

namespace agspeed::comm::tcp {

class SendBufferLimit {
 public:
  static constexpr double kMinBytes = 32 * 1024, kMaxBytes = 512 * 1024;

  /// 0: none.
  int bytes() const { return bytes_; }
  /// Takes in what the connection carries; a rate of 0 is not known. Returns: whether the limit is another one now.
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
  static constexpr double kRoundTrips = 4, kSeconds = 3e-3;
  /// Changes cost a system call: smaller ones wait.
  static constexpr double kMore = 1.25, kLess = 2;

  int bytes_ = 0;
};

}  // namespace agspeed::comm::tcp
