// SPDX-License-Identifier: Apache-2.0
// StoreAddress: where a StoreServer listens, as text and for the system's calls. Pure but for the look-up of names;
// thread-safe.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "comm/io/file_descriptor.h"
#include "runtime/base/status.h"

namespace agspeed::comm {

struct StoreAddress {
  sockaddr_storage system{};
  socklen_t systemBytes = 0;
  std::string text;  ///< as it was given

  /// "10.0.0.1:29500", "[fd00::1]:29500" or "node7:29500"; a name is looked up, which may block.
  static StatusOr<StoreAddress> parse(const std::string& text);

  /// A stream socket, closed on exec, of this kind of address. Not open where the system has none left.
  FileDescriptor socket(int flags = 0) const;
};

}  // namespace agspeed::comm
