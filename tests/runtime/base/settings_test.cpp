// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "runtime/base/settings.h"

namespace agspeed {
namespace {

Settings readFrom(const std::map<std::string, std::string>& variables, std::vector<std::string>& problems) {
  auto lookup = [&](const char* name) -> std::optional<std::string> {
    auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  return readSettings(lookup, problems);
}

TEST(Settings, DefaultsHoldWhenNothingIsSet) {
  std::vector<std::string> problems;
  EXPECT_EQ(readFrom({}, problems).debug, "warn");
  EXPECT_TRUE(problems.empty());
}

TEST(Settings, ASetVariableReplacesTheDefault) {
  std::vector<std::string> problems;
  EXPECT_EQ(readFrom({{"AGSPEED_DEBUG", "trace"}}, problems).debug, "trace");
  EXPECT_TRUE(problems.empty());
}

TEST(ParseSetting, BooleansAcceptTheUsualWordsOnly) {
  for (const char* text : {"1", "true", "On", "YES"}) {
    bool value = false;
    EXPECT_TRUE(parseSetting(text, value)) << text;
    EXPECT_TRUE(value) << text;
  }
  for (const char* text : {"0", "False", "off", "no"}) {
    bool value = true;
    EXPECT_TRUE(parseSetting(text, value)) << text;
    EXPECT_FALSE(value) << text;
  }
  for (const char* text : {"", "2", "maybe", " true"}) {
    bool value = true;
    EXPECT_FALSE(parseSetting(text, value)) << text;
    EXPECT_TRUE(value) << "a malformed text must leave the value";
  }
}

TEST(ParseSetting, IntegersAcceptTheWholeRangeAndNothingElse) {
  int64_t value = 7;
  EXPECT_TRUE(parseSetting("-9223372036854775808", value));
  EXPECT_EQ(value, std::numeric_limits<int64_t>::min());
  value = 7;
  for (const char* text : {"", "12x", "9223372036854775808", "1.5", " 1"}) {
    EXPECT_FALSE(parseSetting(text, value)) << text;
    EXPECT_EQ(value, 7) << text;
  }
}

}  // namespace
}  // namespace agspeed
