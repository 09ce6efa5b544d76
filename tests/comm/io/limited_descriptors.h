// SPDX-License-Identifier: Apache-2.0
// Limits the descriptors that this process may open, for a while. Requires: no other test runs in the process.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>

#include <gtest/gtest.h>

#include "comm/io/file_descriptor.h"

namespace agspeed::comm::io {

inline rlimit descriptorLimit() {
  rlimit limit = {};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  return limit;
}

/// Returns the number of the next descriptor to be opened.
inline rlim_t nextDescriptor() {
  return static_cast<rlim_t>(FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)).get());
}

/// While it lives, the process may only open descriptors below `most`.
class LimitedDescriptors {
 public:
  explicit LimitedDescriptors(rlim_t most) : before_(descriptorLimit()) {
    const rlimit changed = {most, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &changed), 0);
  }
  ~LimitedDescriptors() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
  LimitedDescriptors(const LimitedDescriptors&) = delete;

 private:
  const rlimit before_;
};

}  // namespace agspeed::comm::io
