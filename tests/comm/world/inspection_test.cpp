// SPDX-License-Identifier: Apache-2.0
// Ranks describe their operations in flight. The worlds of both ranks are in this process, each made by a thread.
#include "comm/world/inspection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "comm/api.h"
#include "tests/comm/world/inspection_client.h"

namespace agspeed::comm::world {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;

// Set before any code reads settings, because a machine may have no other interface.
[[maybe_unused]] const int kOnLoopback = setenv("AGSPEED_SOCKET_IFNAME", "lo", 1);

Json inspect(int rank) { return Json::parse(readDocument(connectToPoint(rank, 2))); }

/// Two ranks with a world.
class Inspection : public testing::Test {
 protected:
  Inspection() {
    const auto store = std::make_shared<rendezvous::MemoryStore>();
    auto second = std::async(std::launch::async, [&] { return World::create(store, 1, 2).value(); });
    worlds_[0] = World::create(store, 0, 2).value();
    worlds_[1] = second.get();
  }

  std::unique_ptr<collective::Communicator> communicator(int rank) {
    return collective::Communicator::create(worlds_[static_cast<size_t>(rank)]->engine(), {.name = "world"}).value();
  }
  /// Inspects a rank until `isSo` accepts its first group, and returns that group.
  template <typename Predicate>
  Json groupWhen(int rank, const Predicate& isSo) {
    while (true) {
      const Json document = inspect(rank);
      if (document["groups"].size() > 0 && isSo(document["groups"][0])) return document["groups"][0];
    }
  }
  static engine::OperationHandle startSum(collective::Communicator& group, std::vector<float>& values) {
    const auto bytes = std::as_writable_bytes(std::span(values));
    return group.start(
        {.collective = schedule::Collective::kAllReduce, .dtype = DType::kF32, .input = {bytes}, .output = {bytes}});
  }

  std::array<std::shared_ptr<World>, 2> worlds_;
};

bool hasOperation(const Json& group) { return !group["operations"].empty(); }

TEST_F(Inspection, NamesTheRankAndTheJob) {
  const Json first = inspect(0), second = inspect(1);
  EXPECT_EQ(first["kind"], "agspeed.inspection");
  EXPECT_EQ(first["rank"], 0);
  EXPECT_EQ(second["rank"], 1);
  EXPECT_EQ(first["process"], getpid());
  EXPECT_EQ(first["world_size"], 2);
  EXPECT_EQ(first["job"], second["job"]);
  EXPECT_EQ(first["job"].get<std::string>().size(), 8u);
  EXPECT_EQ(first["rails"][0]["address"], "127.0.0.1");
}

TEST_F(Inspection, ACollectiveThatOneRankHasNotStarted) {
  const auto first = communicator(0), second = communicator(1);
  std::vector<float> ones(1 << 20, 1), twos(1 << 20, 2);
  const engine::OperationHandle sum = startSum(*first, ones);
  const Json group = groupWhen(0, hasOperation);
  const Json operation = group["operations"][0];
  EXPECT_EQ(group["name"], "world");
  EXPECT_THAT(group["ranks"].get<std::vector<int>>(), ElementsAre(0, 1));
  EXPECT_THAT(operation["waits_for"].get<std::vector<int>>(), ElementsAre(1));
  EXPECT_LT(operation["bytes_moved"], operation["bytes"]);
  EXPECT_GE(operation["seconds"], 0);
  const Json other = inspect(1)["groups"][0];
  EXPECT_LT(other["calls"], operation["sequence"]);
  EXPECT_TRUE(other["operations"].empty());

  EXPECT_TRUE(startSum(*second, twos)->wait().isOk());
  EXPECT_TRUE(sum->wait().isOk());
  EXPECT_EQ(ones, std::vector<float>(1 << 20, 3));
  groupWhen(0, [](const Json& done) { return done["operations"].empty() && done["calls"] >= 1; });
}

TEST_F(Inspection, OperationsBehindAnotherOneSayWhatTheyWaitFor) {
  const auto first = communicator(0), second = communicator(1);
  std::vector<float> values(4, 1), others(4, 1);
  const engine::OperationHandle sum = startSum(*first, values);
  const engine::OperationHandle barrier = first->start({.collective = schedule::Collective::kBarrier});
  const Json group = groupWhen(0, [](const Json& found) { return found["operations"].size() == 2; });
  EXPECT_EQ(group["operations"][1]["blocked_by"], "operation 1 of the group is not done");
  const engine::OperationHandle otherSum = startSum(*second, others);
  EXPECT_TRUE(second->start({.collective = schedule::Collective::kBarrier})->wait().isOk());
  EXPECT_TRUE(barrier->wait().isOk());
}

TEST_F(Inspection, AnInputThatIsNotReady) {
  const auto first = communicator(0), second = communicator(1);
  std::atomic<bool> isReady = false;
  std::vector<float> values(4, 1), others(4, 1);
  const auto bytes = std::as_writable_bytes(std::span(values));
  const engine::OperationHandle sum = first->start(
      {.collective = schedule::Collective::kAllReduce, .dtype = DType::kF32, .input = {bytes}, .output = {bytes}},
      {.readiness = [&]() -> StatusOr<bool> { return isReady.load(); }});
  EXPECT_EQ(groupWhen(0, hasOperation)["operations"][0]["blocked_by"], "its input is not ready");
  isReady = true;
  EXPECT_TRUE(startSum(*second, others)->wait().isOk());
  EXPECT_TRUE(sum->wait().isOk());
}

TEST_F(Inspection, AReceiveWithoutASend) {
  const auto first = communicator(0), second = communicator(1);
  std::array<std::byte, 8> bytes = {};
  const engine::OperationHandle receive = first->receive(1, 3, bytes);
  const Json operation = groupWhen(0, hasOperation)["operations"][0];
  EXPECT_EQ(operation["call"], "receive from rank 1 (8 bytes, tag 3)");
  EXPECT_FALSE(operation.contains("sequence"));
  EXPECT_THAT(operation["waits_for"].get<std::vector<int>>(), ElementsAre(1));
  EXPECT_TRUE(second->send(0, 3, bytes)->wait().isOk());
  EXPECT_TRUE(receive->wait().isOk());
}

TEST_F(Inspection, AGroupThatHasEndedSaysWhy) {
  const auto first = communicator(0);
  first->abort("a test");
  EXPECT_EQ(inspect(0)["groups"][0]["failure"], "aborted: a test");
}

TEST_F(Inspection, ANameThatTheCoordinatorsRankHasNotStarted) {
  const auto make = [&](size_t rank) {
    return createNamedGroup(*worlds_[rank], {.group = {.name = "names", .members = {0, 1}}}).value();
  };
  auto other = std::async(std::launch::async, make, 1);
  const std::array<std::unique_ptr<named::NamedGroup>, 2> groups = {make(0), other.get()};
  const auto namedOf = [&](int rank) {
    const Json document = inspect(rank);
    for (const Json& group : document["groups"]) {
      if (group["name"] == "names" && group["is_named"]) return group;
    }
    return Json::object();
  };
  const auto start = [&](size_t rank) {
    named::NamedCall call;
    call.request.kind = named::NamedKind::kBarrier;
    call.request.name = "evaluation";
    return groups[rank]->start(std::move(call)).value();
  };
  const named::NamedHandle early = start(1);
  Json coordinator;
  do {
    coordinator = namedOf(0);
  } while (coordinator["not_started"].empty());
  EXPECT_EQ(coordinator["not_started"][0]["name"], "evaluation");
  EXPECT_THAT(coordinator["not_started"][0]["waits_for"].get<std::vector<int>>(), ElementsAre(0));
  const Json waiting = namedOf(1);
  EXPECT_EQ(waiting["operations"][0]["name"], "evaluation");
  EXPECT_THAT(waiting["operations"][0]["waits_for"].get<std::vector<int>>(), ElementsAre(0));
  EXPECT_TRUE(start(0)->wait().isOk());
  EXPECT_TRUE(early->wait().isOk());
}

TEST_F(Inspection, AGroupOfOthersIsNotMade) {
  const Status status = createNamedGroup(*worlds_[0], {.group = {.name = "names", .members = {1}}}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "rank 0 is not a member of the group 'names' that it makes");
}

TEST_F(Inspection, AnEngineThatDoesNotAnswerIsBusy) {
  std::promise<void> hasBegun, isOver;
  worlds_[0]->engine().enqueue([&] {
    hasBegun.set_value();
    isOver.get_future().wait();
  });
  std::thread driver([&] { worlds_[0]->engine().kick(); });
  hasBegun.get_future().wait();  // otherwise the inspection's thread might drive and run the action
  EXPECT_EQ(inspect(0)["state"], "busy");
  isOver.set_value();
  driver.join();
  EXPECT_EQ(inspect(0)["state"], "joined");
}

TEST(InspectionOfAWorldInTheMaking, SaysThatItWaits) {
  const auto store = std::make_shared<rendezvous::MemoryStore>();
  auto first = std::async(std::launch::async, [&] { return World::create(store, 0, 2).value(); });
  const Json document = inspect(0);
  EXPECT_EQ(document["state"], "joining");
  EXPECT_EQ(document["job"], "");
  const auto second = World::create(store, 1, 2).value();
  EXPECT_EQ(first.get()->size(), 2);
}

TEST(InspectionOfAWorldInTheMaking, HasTheFramesThatAFrontendReads) {
  setStackReader([] { return std::vector<std::string>{"train.py:12 in step"}; });
  const auto world = World::create(std::make_shared<rendezvous::MemoryStore>(), 0, 1).value();
  EXPECT_EQ(Json::parse(readDocument(connectToPoint(0, 1)))["stack"], Json({"train.py:12 in step"}));
  setStackReader(nullptr);
}

}  // namespace
}  // namespace agspeed::comm::world
