// SPDX-License-Identifier: Apache-2.0
// StoreAddress: the address at which a StoreServer listens, as text and for system calls. Thread-safe.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "comm/io/file_descriptor.h"
#include "runtime/base/status.h"

namespace agspeed::comm::rendezvous {

struct StoreAddress {
  sockaddr_storage system{};
  socklen_t systemBytes = 0;
  std::string text;  ///< the text that was parsed

  /// Parses "10.0.0.1:29500", "[fd00::1]:29500" or "node7:29500". The look-up of a name may block.
  static StatusOr<StoreAddress> parse(const std::string& text);

  /// Makes a stream socket for this address family, which is closed on exec. If the system cannot make one, the result
  /// is not open, and errno has the reason.
  io::FileDescriptor socket(int flags = 0) const;
};

}  // namespace agspeed::comm::rendezvous
