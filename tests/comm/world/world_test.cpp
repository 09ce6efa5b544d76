// SPDX-License-Identifier: Apache-2.0
// Worlds of several ranks in one process, over loopback and shared memory. Each rank has a thread of its own.
#include "comm/world/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>

#include "comm/api.h"
#include "tests/comm/io/limited_descriptors.h"

namespace agspeed::comm::world {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

// Set before any code reads settings, because a machine may have no other interface.
[[maybe_unused]] const int kOnLoopback = setenv("AGSPEED_SOCKET_IFNAME", "lo", 1);

constexpr int kSize = 3;
constexpr milliseconds kLong{60000};

using Body = std::function<void(const std::shared_ptr<World>&)>;

/// Makes the world of every rank in the store, each in a thread of its own, and runs `body` with it.
void inWorlds(const std::shared_ptr<rendezvous::Store>& store, const Body& body, int size = kSize) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const StatusOr<std::shared_ptr<World>> world = World::create(store, rank, size);
      ASSERT_TRUE(world.hasValue()) << world.status().toString();
      body(*world);
    });
  }
  for (auto& thread : threads) thread.join();
}

/// Expects the right sum of the numbers 1, 2, ... of the ranks.
void expectSum(World& world) {
  const auto group = collective::Communicator::create(world.engine(), {}).value();
  std::vector<int64_t> values(1000, world.rank() + 1);
  const auto bytes = std::as_writable_bytes(std::span(values));
  const auto sum = group->start(
      {.collective = schedule::Collective::kAllReduce, .dtype = DType::kI64, .input = {bytes}, .output = {bytes}});
  const Status status = sum->wait();
  EXPECT_TRUE(status.isOk()) << status.toString();
  EXPECT_EQ(values, std::vector<int64_t>(1000, world.size() * (world.size() + 1) / 2));
  EXPECT_TRUE(group->start({.collective = schedule::Collective::kBarrier})->wait().isOk());
}

TEST(World, RanksMeetInAStoreOfTheirProcess) {
  inWorlds(std::make_shared<rendezvous::MemoryStore>(), [](const auto& world) { expectSum(*world); });
}

TEST(World, WorldsMayFollowEachOtherInAFolder) {
  const std::string folder = testing::TempDir() + "agspeed_world_" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  for (int i = 0; i < 2; ++i) {
    inWorlds(std::make_shared<rendezvous::FileStore>(folder), [](const auto& world) { expectSum(*world); });
  }
  std::filesystem::remove_all(folder);
}

TEST(World, WorldsOfFewerAndOfMoreRanksMayFollowInAStore) {
  const auto store = std::make_shared<rendezvous::MemoryStore>();
  for (const int size : {3, 2, 3, 4, 2, 3}) {
    inWorlds(store, [](const auto& world) { expectSum(*world); }, size);
  }
}

TEST(World, RanksMeetInAStoreInWhichSomeOfThemWereAlone) {
  const auto store = std::make_shared<rendezvous::MemoryStore>();
  for (const int rank : {0, 1}) {
    const auto alone = World::create(store, rank, kSize, milliseconds(10));
    EXPECT_EQ(alone.status().code(), StatusCode::kResourceExhausted);
  }
  inWorlds(store, [](const auto& world) { expectSum(*world); });
}

TEST(World, MembersAgreeOnANumberPerGroup) {
  std::vector<std::vector<uint32_t>> ids(2, std::vector<uint32_t>(kSize));
  inWorlds(std::make_shared<rendezvous::MemoryStore>(), [&](const auto& world) {
    for (size_t group = 0; group < ids.size(); ++group) {
      const auto id = world->agreeOnId(world->store(), "group/" + std::to_string(group),
                                       {.name = "part", .rank = world->rank(), .timeout = kLong});
      ASSERT_TRUE(id.hasValue()) << id.status().toString();
      ids[group][static_cast<size_t>(world->rank())] = *id;
    }
  });
  for (const auto& ofGroup : ids) EXPECT_THAT(ofGroup, testing::Each(ofGroup[0]));
  EXPECT_NE(ids[0][0], ids[1][0]);
}

/// A world of one rank, for tests that need no other ranks.
class AloneInAWorld : public testing::Test {
 protected:
  const std::shared_ptr<rendezvous::Store> store_ = std::make_shared<rendezvous::MemoryStore>();
  const std::shared_ptr<World> world_ = World::create(store_, 0, 1).value();
};

TEST_F(AloneInAWorld, AGroupThatRankZeroDoesNotMakeIsNamed) {
  const auto id =
      world_->agreeOnId(world_->store(), "key", {.name = "pipeline", .rank = 3, .timeout = milliseconds(1)});
  EXPECT_EQ(id.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(id.status().message(),
              AllOf(HasSubstr("rank 3 of group 'pipeline' timed out"), HasSubstr("within 0.001 s")));
}

TEST_F(AloneInAWorld, ANumberThatIsNoneIsRefused) {
  ASSERT_TRUE(world_->store().set("key", "12x").isOk());
  const auto id = world_->agreeOnId(world_->store(), "key", {.name = "a", .rank = 1, .timeout = kLong});
  EXPECT_EQ(id.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(id.status().message(), HasSubstr("'12x'"));
}

TEST_F(AloneInAWorld, KeysOfAnotherStoreAreItsOwn) {
  const auto other = std::make_shared<rendezvous::MemoryStore>();
  ASSERT_TRUE(world_->within(other).set("key", "value").isOk());
  EXPECT_EQ(*other->tryGet("agspeed/1/1/key"), "value");
}

TEST_F(AloneInAWorld, CountersNameTheRankAndItsRails) {
  const std::string json = world_->countersJson();
  EXPECT_THAT(json,
              AllOf(HasSubstr("\"rank\":0"), HasSubstr("\"world_size\":1"), HasSubstr("\"address\":\"127.0.0.1\"")));
}

TEST_F(AloneInAWorld, EndsWithTheLastThatUsesItAlsoInACallback) {
  std::shared_ptr<World> world = World::create(store_, 0, 1).value();
  std::weak_ptr<World> seen = world;
  engine::Engine& engine = world->engine();
  engine.callLater([last = std::move(world)]() mutable { last.reset(); });
  const auto limit = io::Clock::now() + kLong;
  while (!seen.expired() && io::Clock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(seen.expired());
}

TEST_F(AloneInAWorld, IsLeftInPlaceByAForkedProcess) {
  EXPECT_FALSE(world_->isForked());
  std::shared_ptr<World> last = World::create(store_, 0, 1).value();
  const pid_t child = fork();
  if (child == 0) {
    const bool isForked = last->isForked();
    last.reset();
    _exit(isForked ? 7 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  expectSum(*last);
}

TEST_F(AloneInAWorld, TheDefaultGroupsWorldIsFoundWhileItLives) {
  World::setOfDefaultGroup(world_);
  EXPECT_EQ(World::ofDefaultGroup(), world_);
  World::setOfDefaultGroup(nullptr);
  EXPECT_EQ(World::ofDefaultGroup(), nullptr);
}

TEST(World, SaysSoWhereThereIsNoDescriptor) {
  // Make a first world, so that all libraries and files that are loaded only once are already loaded.
  ASSERT_TRUE(World::create(std::make_shared<rendezvous::MemoryStore>(), 0, 1).hasValue());
  int numRefused = 0;
  for (rlim_t numFree = 0;; ++numFree) {
    StatusOr<std::shared_ptr<World>> made = unavailable("not made");
    {
      const io::LimitedDescriptors limited(io::nextDescriptor() + numFree);
      made = World::create(std::make_shared<rendezvous::MemoryStore>(), 0, 1);
    }
    if (made.hasValue()) break;
    ++numRefused;
    ASSERT_THAT(made.status().message(), AllOf(HasSubstr("Too many open files"), HasSubstr("ulimit -n"))) << numFree;
  }
  EXPECT_GT(numRefused, 2);
}

TEST(World, DescribesWhatARankWouldOpen) { EXPECT_THAT(*World::describeAlone(), HasSubstr("1 rail: 127.0.0.1")); }

}  // namespace
}  // namespace agspeed::comm::world
