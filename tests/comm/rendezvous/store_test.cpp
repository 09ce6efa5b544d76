// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/store.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/rendezvous/store_server.h"
#include "comm/rendezvous/stream_store.h"

namespace agspeed::comm::rendezvous {
namespace {

/// A client and its server.
class ServedStore final : public Store {
 public:
  Status set(const std::string& key, const std::string& value) override { return client_->set(key, value); }
  StatusOr<std::optional<std::string>> tryGet(const std::string& key) override { return client_->tryGet(key); }
  Reader reader() override { return client_->reader(); }
  StatusOr<int64_t> add(const std::string& key, int64_t amount) override { return client_->add(key, amount); }
  StatusOr<std::string> setOnce(const std::string& key, const std::string& value) override {
    return client_->setOnce(key, value);
  }

 private:
  const security::JobKey key_ = security::JobKey(16, std::byte{7});
  const std::unique_ptr<StoreServer> server_ =
      StoreServer::start(StoreAddress::parse("127.0.0.1:0").value(), key_).value();
  const std::unique_ptr<StreamStore> client_ =
      StreamStore::connect(StoreAddress::parse("127.0.0.1:" + std::to_string(server_->port())).value(), key_,
                           std::chrono::steady_clock::now() + std::chrono::minutes(1))
          .value();
};

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
      for (int k = 0; k < 25; ++k) EXPECT_TRUE(store_->add("count", 2).hasValue());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(*store_->add("count", 0), 200);
}

TEST_P(Stores, KeepTheFirstOfValuesThatAreSetOnce) {
  EXPECT_EQ(*store_->setOnce("outcome", "first"), "first");
  EXPECT_EQ(*store_->setOnce("outcome", "second"), "first");
  EXPECT_EQ(*store_->tryGet("outcome"), "first");
  ASSERT_TRUE(store_->set("value", "set").isOk());
  EXPECT_EQ(*store_->setOnce("value", "later"), "set");
}

TEST_P(Stores, GiveOneOfValuesThatAreSetOnceToAllThreads) {
  std::vector<std::string> seen(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < seen.size(); ++i) {
    threads.emplace_back([&, i] { seen[i] = *store_->setOnce("winner", std::to_string(i)); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(seen, testing::Each(seen[0]));
}

TEST_P(Stores, WaitForAValueUntilTheDeadline) {
  EXPECT_EQ(*store_->getUntil("late", std::chrono::steady_clock::now() + std::chrono::milliseconds(5)), std::nullopt);
  std::thread setter([&] { EXPECT_TRUE(store_->set("late", "here").isOk()); });
  EXPECT_EQ(*store_->getUntil("late", std::chrono::steady_clock::now() + std::chrono::minutes(1)), "here");
  setter.join();
}

TEST_P(Stores, ArePartedByPrefixes) {
  const std::shared_ptr<Store> whole = GetParam().make(folder_);
  PrefixStore one(whole, "one/"), other(whole, "other/");
  ASSERT_TRUE(one.set("key", "1").isOk());
  EXPECT_EQ(*other.setOnce("key", "2"), "2");
  EXPECT_EQ(*one.add("count", 5), 5);
  EXPECT_EQ(*other.add("count", 1), 1);
  EXPECT_EQ(*whole->tryGet("one/key"), "1");
  EXPECT_EQ((*one.reader()({"key", "none"})), (Store::Values{"1", std::nullopt}));
}

INSTANTIATE_TEST_SUITE_P(Kinds, Stores,
                         testing::Values(StoreCase{"Memory", [](auto&) { return std::make_unique<MemoryStore>(); }},
                                         StoreCase{"File",
                                                   [](auto& path) { return std::make_unique<FileStore>(path); }},
                                         StoreCase{"Stream", [](auto&) { return std::make_unique<ServedStore>(); }}),
                         [](const auto& info) { return info.param.name; });

TEST(FileStore, NamesTheFileThatItCannotWrite) {
  EXPECT_THAT(FileStore("/nonexistent").set("key", "value").message(), testing::HasSubstr("/nonexistent/key"));
}

TEST(FileStore, DoesNotWaitForAPipeInTheFilesPlace) {
  const std::string folder = testing::TempDir() + "agspeed_pipe_" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  ASSERT_EQ(mkfifo((folder + "/key").c_str(), 0600), 0);
  FileStore store(folder);
  EXPECT_THAT(store.tryGet("key").status().message(), testing::HasSubstr("cannot read " + folder + "/key"));
  EXPECT_THAT(store.add("key", 1).status().message(), testing::HasSubstr("cannot count in " + folder + "/key"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace agspeed::comm::rendezvous
