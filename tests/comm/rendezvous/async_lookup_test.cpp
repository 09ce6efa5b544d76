// SPDX-License-Identifier: Apache-2.0
// Lookups in stores that do not answer.
#include "comm/rendezvous/async_lookup.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/rendezvous/directory.h"

namespace agspeed::comm::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using testing::HasSubstr;

/// The state that a reader and a store share.
struct Server {
  MemoryStore values;
  std::mutex mutex;
  std::condition_variable changed;
  bool isStopped = false;
  std::vector<std::vector<std::string>> requests;

  void setStopped(bool stopped) {
    const std::lock_guard lock(mutex);
    isStopped = stopped;
    changed.notify_all();
  }
};

/// A store whose server can be stopped, which makes readers wait.
class RemoteStore final : public Store {
 public:
  explicit RemoteStore(std::shared_ptr<Server> server) : server_(std::move(server)) {}

  Status set(const std::string& key, const std::string& value) override { return server_->values.set(key, value); }
  StatusOr<std::optional<std::string>> tryGet(const std::string& key) override { return server_->values.tryGet(key); }
  StatusOr<int64_t> add(const std::string& key, int64_t amount) override { return server_->values.add(key, amount); }
  StatusOr<std::string> setOnce(const std::string& key, const std::string& value) override {
    return server_->values.setOnce(key, value);
  }
  Reader reader() override {
    return [server = server_](const std::vector<std::string>& keys) {
      std::unique_lock lock(server->mutex);
      server->requests.push_back(keys);
      server->changed.wait(lock, [&] { return !server->isStopped; });
      return server->values.reader()(keys);
    };
  }

 private:
  std::shared_ptr<Server> server_;
};

class StoppedServer : public testing::Test {
 protected:
  static DirectoryOptions optionsOf(int rank) {
    DirectoryOptions options;
    options.rank = rank;
    options.size = 2;
    return options;
  }

  std::shared_ptr<Server> server_ = std::make_shared<Server>();
  RemoteStore store_{server_};
};

TEST_F(StoppedServer, IsNotWaitedFor) {
  Directory self(store_, optionsOf(0));
  Directory other(store_, optionsOf(1));
  ASSERT_TRUE(other.publish({}).isOk());
  server_->setStopped(true);
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < 10; ++i) {
    const StatusOr<const Peer*> peer = self.find(1, start);
    ASSERT_TRUE(peer.hasValue()) << peer.status().toString();
    EXPECT_EQ(*peer, nullptr);
  }
  server_->setStopped(false);
  const Clock::time_point limit = Clock::now() + std::chrono::seconds(20);
  while (*self.find(1, start) == nullptr && Clock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_NE(*self.find(1, start), nullptr);
}

TEST_F(StoppedServer, IsGivenUpAfterAWhileAndNamed) {
  Directory self(store_, optionsOf(0));
  server_->setStopped(true);
  const Clock::time_point start = Clock::now();
  ASSERT_TRUE(self.find(1, start).hasValue());
  testing::internal::CaptureStderr();
  ASSERT_TRUE(self.find(1, start + milliseconds(5000)).hasValue());
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("asked the store for rank 1 5000 ms ago"));
  const Status status = self.find(1, start + milliseconds(10001)).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("alive?"));
}

TEST_F(StoppedServer, HoldsUpNoDestructor) {
  server_->setStopped(true);
  {
    AsyncLookup lookup(store_.reader());
    EXPECT_EQ(lookup.find("key"), std::nullopt);
  }
  server_->setStopped(false);  // so that the thread left behind ends
}

TEST_F(StoppedServer, GetsInOneRequestWhatWasAskedWhileItDidNotAnswer) {
  server_->setStopped(true);
  AsyncLookup lookup(store_.reader());
  const std::vector<std::string> keys = {"a", "b", "c", "d"};
  const Clock::time_point limit = Clock::now() + std::chrono::seconds(20);
  const auto numRequests = [&] {
    const std::lock_guard lock(server_->mutex);
    return server_->requests.size();
  };
  EXPECT_EQ(lookup.find(keys[0]), std::nullopt);
  while (numRequests() == 0 && Clock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
  for (const std::string& key : keys) EXPECT_EQ(lookup.find(key), std::nullopt);
  server_->setStopped(false);
  for (const std::string& key : keys) {
    while (!lookup.find(key) && Clock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
  }
  ASSERT_EQ(numRequests(), 2u);
  EXPECT_EQ(server_->requests[1], std::vector<std::string>(keys.begin() + 1, keys.end()));
}

TEST(AsyncLookup, EveryKeyIsFoundOrNot) {
  MemoryStore store;
  ASSERT_TRUE(store.set("there", "value").isOk());
  AsyncLookup lookup(store.reader());
  for (const std::string key : {"there", "not there", "there"}) {
    std::optional<AsyncLookup::Result> result;
    const Clock::time_point limit = Clock::now() + std::chrono::seconds(20);
    while (!(result = lookup.find(key)) && Clock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
    ASSERT_TRUE(result && result->hasValue()) << key;
    EXPECT_EQ(**result, key == "there" ? std::optional<std::string>("value") : std::nullopt);
  }
}

}  // namespace
}  // namespace agspeed::comm::rendezvous
