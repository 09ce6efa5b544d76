// SPDX-License-Identifier: Apache-2.0
#include "comm/io/file_descriptor.h"

#include <unistd.h>

namespace agspeed::comm::io {

FileDescriptor::~FileDescriptor() {
  if (value_ >= 0) close(value_);
}

}  // namespace agspeed::comm::io
