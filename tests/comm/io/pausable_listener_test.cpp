// SPDX-License-Identifier: Apache-2.0
#include "comm/io/pausable_listener.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/io/file_descriptor.h"

namespace agspeed::comm::io {
namespace {

using testing::HasSubstr;

/// A descriptor that always has a connection to accept.
class PausableListenerTest : public testing::Test, public Poller::Handler {
 protected:
  void ready(uint32_t) override { ++numCalls_; }
  /// True if the poller calls the handler.
  bool isCalled() {
    numCalls_ = 0;
    poller_.wait({});
    return numCalls_ > 0;
  }

  Poller poller_;
  const FileDescriptor descriptor_{eventfd(1, EFD_CLOEXEC)};
  PausableListener listener_{poller_, descriptor_.get(), *this};
  int numCalls_ = 0;
};

TEST_F(PausableListenerTest, IsLeftAloneWhileDescriptorsAreShort) {
  EXPECT_TRUE(isCalled());
  for (const int error : {EMFILE, ENFILE, ENOBUFS, ENOMEM}) {
    listener_.failed(error);
    EXPECT_FALSE(isCalled()) << error;
    listener_.resume();
    EXPECT_TRUE(isCalled()) << error;
  }
}

TEST_F(PausableListenerTest, GoesOnWithoutAConnectionToAccept) {
  listener_.failed(EAGAIN);
  EXPECT_TRUE(isCalled());
  listener_.resume();
  EXPECT_TRUE(isCalled());
}

TEST_F(PausableListenerTest, SaysOnceWhatToDo) {
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) {
    listener_.failed(EMFILE);
    listener_.resume();
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("Too many open files; raise the limit of descriptors"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

TEST_F(PausableListenerTest, MayEndWhilePaused) {
  {
    const FileDescriptor descriptor(eventfd(1, EFD_CLOEXEC));
    PausableListener other(poller_, descriptor.get(), *this);
    other.failed(EMFILE);
  }
  EXPECT_TRUE(isCalled()) << "the first goes on";
}

}  // namespace
}  // namespace agspeed::comm::io
