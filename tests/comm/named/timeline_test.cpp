// SPDX-License-Identifier: Apache-2.0
#include "comm/named/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "tests/comm/named/requests.h"

namespace agspeed::comm::named {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string textOf(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

size_t countOf(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Timeline, ATraceHasTheNegotiationAndTheActivitiesOfEveryName) {
  const std::string path = ::testing::TempDir() + "agspeed_timeline_test.json";
  {
    NamedRanks ranks(2);
    auto timeline = Timeline::open(path, true);
    ASSERT_TRUE(timeline.hasValue());
    ranks.groups[0]->setTimeline(*timeline);
    ranks.run([](int, NamedGroup& group) {
      for (int step = 0; step < 3; ++step) {
        auto first = start(group, requestFor("a \"quoted\" name"), {{1, 2, 3, 4}});
        auto second = start(group, requestFor("b", {4}, NamedKind::kBroadcast), {{1, 2, 3, 4}});
        ASSERT_TRUE(first->wait().isOk());
        ASSERT_TRUE(second->wait().isOk());
      }
    });
    ranks.groups[0]->setTimeline(nullptr);
    (*timeline)->close();
  }
  const std::string text = textOf(path);
  std::remove(path.c_str());
  EXPECT_THAT(text, StartsWith("[\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 0"));
  EXPECT_THAT(text, EndsWith("}]\n"));
  EXPECT_THAT(text, HasSubstr("\"args\": {\"name\": \"a \\\"quoted\\\" name\"}"));
  for (const char* activity :
       {"NEGOTIATE_ALLREDUCE", "ALLREDUCE", "GLOO_ALLREDUCE", "NEGOTIATE_BROADCAST", "BROADCAST", "GLOO_BCAST"}) {
    EXPECT_EQ(countOf(text, formatText("\"ph\": \"B\", \"name\": \"{}\"", activity)), 3u) << activity;
  }
  EXPECT_EQ(countOf(text, "\"ph\": \"X\", \"name\": \"1\""), 6u);
  EXPECT_EQ(countOf(text, "\"ph\": \"B\""), countOf(text, "\"ph\": \"E\""));
  EXPECT_GE(countOf(text, "CYCLE_START"), 3u);
}

TEST(Timeline, ALinkInItsPlaceIsNotFollowed) {
  const std::string path = ::testing::TempDir() + "agspeed_timeline_link.json";
  const std::string other = ::testing::TempDir() + "agspeed_timeline_other";
  std::ofstream(other) << "precious";
  std::remove(path.c_str());
  ASSERT_EQ(symlink(other.c_str(), path.c_str()), 0);
  Timeline::open(path, false).value()->close();
  EXPECT_EQ(textOf(other), "precious");
  EXPECT_THAT(textOf(path), EndsWith("]\n"));
  std::remove(path.c_str());
  std::remove(other.c_str());
}

TEST(Timeline, AFileThatCannotBeWrittenSaysSo) {
  const auto timeline = Timeline::open("/no such folder/timeline.json", false);
  ASSERT_FALSE(timeline.hasValue());
  EXPECT_THAT(timeline.status().message(), HasSubstr("cannot be written"));
}

}  // namespace
}  // namespace agspeed::comm::named
