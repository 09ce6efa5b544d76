// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/system_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <string>

namespace agspeed {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(DescribeError, SaysWhatTheSystemSays) { EXPECT_EQ(describeError(EACCES), "Permission denied"); }

TEST(DescribeError, NamesTheLimitOfDescriptorsAndHowToRaiseIt) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_THAT(describeError(EMFILE), AllOf(HasSubstr("Too many open files"), HasSubstr("ulimit -n"),
                                           HasSubstr(std::to_string(limit.rlim_cur))));
  EXPECT_THAT(describeError(ENFILE), HasSubstr("fs.file-max"));
}

}  // namespace
}  // namespace agspeed
