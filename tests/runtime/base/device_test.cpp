// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace agspeed {
namespace {

TEST(DeviceNames, ReadBack) {
  for (const char* name : {"cpu", "cuda:0", "cuda:7"}) EXPECT_EQ(toString(deviceFromString(name).value()), name);
  EXPECT_EQ(toString(deviceFromString("cuda").value()), "cuda:0");
}

TEST(DeviceNames, OthersAreUnsupportedByName) {
  for (const char* name : {"", "meta", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "cuda0", "xpu:0"}) {
    const Status status = deviceFromString(name).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << name;
    EXPECT_THAT(status.message(), ::testing::HasSubstr("\"" + std::string(name) + "\""));
  }
}

}  // namespace
}  // namespace agspeed
