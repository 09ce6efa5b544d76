// SPDX-License-Identifier: Apache-2.0
#include "comm/world/flight_record.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "comm/messaging/loopback_messenger.h"

namespace agspeed::comm::world {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

/// The folder of records. It is set before any code reads the settings; the test that needs it makes it.
const fs::path kFolder = [] {
  fs::path folder = fs::temp_directory_path() / ("agspeed_flight_" + std::to_string(getpid()));
  setenv("AGSPEED_FLIGHT_RECORD_DIR", folder.c_str(), 1);
  return folder;
}();

class FlightRecord : public testing::Test {
 protected:
  FlightRecord() : network_(1), engine_(network_.messenger(0)) {}

  /// Adds an operation that moves `numBytes` and has not ended. Returns its handle.
  engine::OperationHandle add(FlightRing& ring, size_t numBytes = 8) {
    auto operation = std::make_shared<engine::Operation>(engine_);
    ring.add(
        {.name = "broadcast", .sequence = ++sequence_, .dtype = DType::kF32, .rank = 1, .started = io::Clock::now()},
        {}, {std::span(bytes_).first(numBytes)}, operation);
    return operation;
  }
  Json groupsOf(FlightRecorder& recorder) { return Json::parse(recorder.toJson("a test asked"))["groups"]; }

  const std::shared_ptr<FlightRecorder> recorder = std::make_shared<FlightRecorder>(0, 4);

 private:
  messaging::LoopbackGroup network_;
  engine::Engine engine_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(64);
  uint64_t sequence_ = 0;
};

TEST_F(FlightRecord, SaysHowOperationsEnded) {
  const auto ring = recorder->addGroup("world", {0, 1, 2, 3});
  const auto open = add(*ring), good = add(*ring), bad = add(*ring);
  good->complete({});
  bad->complete(unavailable("rank 1 is lost"));
  const Json operations = groupsOf(*recorder)[0]["operations"];
  ASSERT_EQ(operations.size(), 3u);
  EXPECT_EQ(operations[0]["state"], "under way");
  EXPECT_EQ(operations[1]["state"], "done");
  EXPECT_EQ(operations[2]["state"], "failed");
  EXPECT_EQ(operations[2]["error"], "rank 1 is lost");
  EXPECT_EQ(operations[0]["output_sizes"], Json::array({2}));
  EXPECT_EQ(operations[0]["root"], 1);
}

TEST_F(FlightRecord, KeepsTheLatestOperationsOfAGroup) {
  const auto ring = recorder->addGroup("world", {0});
  for (size_t i = 0; i < FlightRecorder::kEntries + 5; ++i) add(*ring)->complete({});
  const Json group = groupsOf(*recorder)[0];
  EXPECT_EQ(group["operations_before"], 5);
  EXPECT_EQ(group["operations"].size(), FlightRecorder::kEntries);
  EXPECT_EQ(group["operations"][0]["sequence"], 6);
}

TEST_F(FlightRecord, LinksWhereItsNamesWouldBeAreNotFollowed) {
  fs::create_directory(kFolder);
  std::ofstream(kFolder / "own") << "precious";
  const fs::path path = kFolder / "flight-record-rank0.json";
  for (const fs::path& planted : {path, fs::path(path.string() + "." + std::to_string(getpid()))}) {
    fs::create_symlink(kFolder / "own", planted);
  }
  recorder->write("a test asked");
  std::stringstream own;
  own << std::ifstream(kFolder / "own").rdbuf();
  EXPECT_EQ(own.str(), "precious");
  EXPECT_FALSE(fs::is_symlink(path));
  EXPECT_EQ(Json::parse(std::ifstream(path))["reason"], "a test asked");
  fs::remove_all(kFolder);
}

TEST_F(FlightRecord, SumsOutliveTheirGroups) {
  {
    const auto ring = recorder->addGroup("first", {0});
    add(*ring, 8)->complete({});
    add(*ring, 16)->complete(unavailable("no"));
    recorder->totals();  // updates the end of each operation
  }
  EXPECT_TRUE(groupsOf(*recorder).empty());
  const OperationTotals totals = recorder->totals().at("broadcast");
  EXPECT_EQ(totals.numStarted, 2u);
  EXPECT_EQ(totals.numEnded, 2u);
  EXPECT_EQ(totals.numFailed, 1u);
  EXPECT_EQ(totals.numBytes, 24u);
}

}  // namespace
}  // namespace agspeed::comm::world
