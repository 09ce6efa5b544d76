// SPDX-License-Identifier: Apache-2.0
#include "comm/world/meeting_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace agspeed::comm {
namespace {

using testing::HasSubstr;

StatusOr<std::shared_ptr<Store>> meet(const std::string& where, int rank) {
  return meetAt(where, rank, 2, std::chrono::steady_clock::now());
}

TEST(MeetingPoint, AFolderIsAStoreOfAllWhoNameIt) {
  std::string folder = testing::TempDir() + "agspeed-meeting-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  ASSERT_TRUE((*meet("file:" + folder, 0))->set("key", "here"));
  EXPECT_EQ(*(*meet("file:" + folder, 1))->tryGet("key"), "here");
  std::filesystem::remove_all(folder);
}

TEST(MeetingPoint, AnAddressNeedsAJobKeyAtEveryRank) {
  for (const int rank : {0, 1}) {
    const Status status = meet("tcp:127.0.0.1:9", rank).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << rank;
    EXPECT_THAT(status.message(), HasSubstr("job key")) << rank;
  }
}

TEST(MeetingPoint, OtherTextsAreRefused) {
  for (const char* text : {"", "file:", "tcp:", "/shared/job", "udp:127.0.0.1:9"}) {
    EXPECT_THAT(meet(text, 0).status().message(), HasSubstr("write file:FOLDER or tcp:HOST:PORT")) << text;
  }
  EXPECT_THAT(meet("tcp:127.0.0.1", 0).status().message(), HasSubstr("write HOST:PORT"));
}

}  // namespace
}  // namespace agspeed::comm
