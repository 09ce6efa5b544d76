// SPDX-License-Identifier: Apache-2.0
// The C library as its users have it: a program in C, in processes of its own, and what the library shows and needs.
#include "comm/c_api/named_operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/comm/c_api/rank.h"

namespace {

using testing::HasSubstr;
using testing::Not;

std::string outputOf(const std::string& command) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  while (const size_t count = fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), count);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return text;
}

TEST(NamedOperationsInC, EveryKindRunsBetweenProcesses) {
  constexpr int kSize = 3;
  std::string folder = (std::filesystem::temp_directory_path() / "agspeed-c-api-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  setenv("AGSPEED_SOCKET_IFNAME", "lo", 1);
  std::vector<pid_t> children;
  for (int rank = 0; rank < kSize; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      const int line = run_operations(("file:" + folder).c_str(), rank, kSize);
      if (line != 0) fprintf(stderr, "rank %d: rank.c:%d failed\n", rank, line);
      _exit(line != 0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  std::filesystem::remove_all(folder);
}

TEST(NamedOperationsInC, WhereRanksMeetAndWhoTheyAreIsChecked) {
  AgGroup* group = nullptr;
  EXPECT_EQ(ag_group_create("/tmp", 0, 1, nullptr, &group), AG_INVALID_ARGUMENT);
  EXPECT_THAT(ag_last_error(), HasSubstr("rendezvous '/tmp': write file:FOLDER"));
  EXPECT_EQ(ag_group_create("file:/tmp", 2, 2, nullptr, &group), AG_INVALID_ARGUMENT);
  EXPECT_THAT(ag_last_error(), HasSubstr("rank 2 of 2"));
  EXPECT_EQ(group, nullptr);
}

TEST(NamedOperationsInC, TheLibraryShowsItsFunctionsAndNeedsNoFramework) {
  const std::string library = AG_COMM_LIBRARY;
  std::istringstream shown(outputOf("nm -D --defined-only " + library));
  std::string address, kind, name;
  while (shown >> address >> kind >> name) EXPECT_EQ(name.rfind("ag_", 0), 0u) << name;
  EXPECT_THAT(outputOf("ldd " + library),
              Not(testing::AnyOf(HasSubstr("torch"), HasSubstr("LLVM"), HasSubstr("MLIR"))));
}

}  // namespace
