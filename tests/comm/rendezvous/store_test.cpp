// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/store.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace agspeed::comm {
namespace {

struct StoreCase {
  const char* name;
  std::function<std::unique_ptr<Store>(const std::string& folder)> make;
};

class Stores : public testing::TestWithParam<StoreCase> {
 protected:
  Stores() { std::filesystem::create_directories(folder_); }
  ~Stores() override { std::filesystem::remove_all(folder_); }

  const std::string folder_ = testing::TempDir() + "agspeed_store_" + std::to_string(getpid());
  const std::unique_ptr<Store> store_ = GetParam().make(folder_);
};

TEST_P(Stores, GiveBackWhatWasSetLast) {
  EXPECT_EQ(*store_->tryGet("a/b"), std::nullopt);
  ASSERT_TRUE(store_->set("a/b", "one").isOk());
  ASSERT_TRUE(store_->set("a/b", std::string("t\0o", 3)).isOk());
  EXPECT_EQ(*store_->tryGet("a/b"), std::string("t\0o", 3));
}

TEST_P(Stores, CountAcrossThreads) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 25; ++k) EXPECT_TRUE(store_->add("count", 2).isOk());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(*store_->add("count", 0), 200);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Stores,
                         testing::Values(StoreCase{"Memory", [](auto&) { return std::make_unique<MemoryStore>(); }},
                                         StoreCase{"File",
                                                   [](auto& path) { return std::make_unique<FileStore>(path); }}),
                         [](const auto& info) { return info.param.name; });

TEST(FileStore, NamesTheFileThatItCannotWrite) {
  EXPECT_THAT(FileStore("/nonexistent").set("key", "value").message(), testing::HasSubstr("/nonexistent/key"));
}

}  // namespace
}  // namespace agspeed::comm
