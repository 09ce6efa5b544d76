// SPDX-License-Identifier: Apache-2.0
#include "comm/io/watch.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <optional>

#include <gtest/gtest.h>

namespace agspeed::comm::io {
namespace {

FileDescriptor alwaysReady() { return FileDescriptor(eventfd(1, EFD_CLOEXEC)); }
bool isOpen(int descriptor) { return fcntl(descriptor, F_GETFD) >= 0; }

TEST(Watch, CallsItsFunctionUntilItEnds) {
  Poller poller;
  int numCalls = 0;
  std::optional<Watch> watch(std::in_place, poller, alwaysReady(), EPOLLIN, [&] { ++numCalls; });
  poller.wait({});
  poller.wait({});
  EXPECT_EQ(numCalls, 2);
  const int descriptor = watch->descriptor().get();
  watch.reset();
  poller.wait({});
  EXPECT_EQ(numCalls, 2);
  EXPECT_FALSE(isOpen(descriptor)) << "it was the watch's own";
}

TEST(Watch, MayBeStoppedByItsOwnFunction) {
  Poller poller;
  int numCalls = 0;
  Watch watch(poller, alwaysReady(), EPOLLIN, [&] {
    ++numCalls;
    watch.stop();
  });
  poller.wait({});
  poller.wait({});
  EXPECT_EQ(numCalls, 1);
}

TEST(Watch, LeavesADescriptorThatItDoesNotOwnOpen) {
  Poller poller;
  const FileDescriptor descriptor = alwaysReady();
  {
    const Watch watch(poller, descriptor.get(), EPOLLIN, [] {});
  }
  EXPECT_TRUE(isOpen(descriptor.get()));
}

}  // namespace
}  // namespace agspeed::comm::io
