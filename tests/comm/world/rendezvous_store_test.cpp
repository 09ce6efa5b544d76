// SPDX-License-Identifier: Apache-2.0
#include "comm/world/rendezvous_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace agspeed::comm::world {
namespace {

using testing::HasSubstr;

StatusOr<std::shared_ptr<rendezvous::Store>> openStore(const std::string& where, int rank) {
  return openRendezvousStore(where, rank, 2, std::chrono::steady_clock::now());
}

TEST(RendezvousStore, AFolderIsAStoreOfAllRanksThatNameIt) {
  std::string folder = testing::TempDir() + "agspeed-rendezvous-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  ASSERT_TRUE((*openStore("file:" + folder, 0))->set("key", "here").isOk());
  EXPECT_EQ(*(*openStore("file:" + folder, 1))->tryGet("key"), "here");
  std::filesystem::remove_all(folder);
}

TEST(RendezvousStore, AnAddressNeedsAJobKeyAtEveryRank) {
  for (const int rank : {0, 1}) {
    const Status status = openStore("tcp:127.0.0.1:9", rank).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << rank;
    EXPECT_THAT(status.message(), HasSubstr("job key")) << rank;
  }
}

TEST(RendezvousStore, OtherTextsAreRefused) {
  for (const char* text : {"", "file:", "tcp:", "/shared/job", "udp:127.0.0.1:9"}) {
    EXPECT_THAT(openStore(text, 0).status().message(), HasSubstr("write file:FOLDER or tcp:HOST:PORT")) << text;
  }
  EXPECT_THAT(openStore("tcp:127.0.0.1", 0).status().message(), HasSubstr("write HOST:PORT"));
}

}  // namespace
}  // namespace agspeed::comm::world
