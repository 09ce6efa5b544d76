// SPDX-License-Identifier: Apache-2.0
// The files that a run of passes writes to the dump folder.
#include "passes/pass_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace agspeed::passes {
namespace {

namespace fs = std::filesystem;
using ::testing::MatchesRegex;

class PassTraceTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  std::string read(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name);
    return file ? std::string(std::istreambuf_iterator<char>(file), {}) : "(no file)";
  }

  std::string folder_ = ::testing::TempDir() + "/agspeed-trace-" + std::to_string(getpid());
};

TEST_F(PassTraceTest, NumbersResultsAndSaysWhichPassDidNothing) {
  PassTrace trace(folder_, "forward-", ".ag");
  for (const char* pass : {"import", "dce"}) trace.dump(pass, [] { return "graph"; });
  trace.dump("cse", [] { return "smaller"; });
  EXPECT_EQ(read("forward-0-import.ag"), "graph");
  EXPECT_EQ(read("forward-1-dce.ag"), "(unchanged)\n");
  EXPECT_EQ(read("forward-2-cse.ag"), "smaller");
}

TEST_F(PassTraceTest, ListsTimingsInTheOrderOfPasses) {
  PassTrace trace(folder_, "k.", ".mlir");
  for (const char* pass : {"dce", "cse"}) trace.addTiming(pass, std::chrono::steady_clock::now());
  trace.dumpTimings();
  EXPECT_THAT(read("k.timings.txt"), MatchesRegex("dce [^ \n]+\ncse [^ \n]+\n"));
}

TEST_F(PassTraceTest, WritesAndPrintsNothingWithoutAFolder) {
  PassTrace trace("", "forward-", ".ag");
  trace.dump("dce", []() -> std::string {
    ADD_FAILURE() << "printed without a folder";
    return "";
  });
  trace.dumpTimings();
  EXPECT_EQ(trace.writeFile("reproducer", "text"), "");
}

TEST_F(PassTraceTest, AFileThatCannotBeWrittenIsNoError) {
  PassTrace trace(folder_ + "/missing", "forward-", ".ag");
  trace.dump("dce", [] { return "graph"; });
  EXPECT_EQ(trace.writeFile("reproducer", "text"), "");
}

}  // namespace
}  // namespace agspeed::passes
