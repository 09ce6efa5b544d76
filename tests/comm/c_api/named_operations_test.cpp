// SPDX-License-Identifier: Apache-2.0
// The C library as its users see it: a program in C, run in separate processes, and the library's symbols and needs.
#include "comm/c_api/named_operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
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

/// A port that is free now. Rank 0 binds it soon.
int freePort() {
  const int probe = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(probe, reinterpret_cast<sockaddr*>(&address), size), 0);
  getsockname(probe, reinterpret_cast<sockaddr*>(&address), &size);
  close(probe);
  return ntohs(address.sin_port);
}

std::string outputOf(const std::string& command) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  while (const size_t count = fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), count);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return text;
}

/// Runs each rank in a process of its own, which inherits no threads.
void runRanks(const std::string& rendezvous) {
  constexpr int kSize = 3;
  setenv("AGSPEED_SOCKET_IFNAME", "lo", 1);
  std::vector<pid_t> children;
  for (int rank = 0; rank < kSize; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      const int line = run_operations(rendezvous.c_str(), rank, kSize);
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
}

TEST(NamedOperationsInC, EveryKindRunsBetweenProcessesThatMeetInAFolder) {
  std::string folder = (std::filesystem::temp_directory_path() / "agspeed-c-api-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  runRanks("file:" + folder);
  std::filesystem::remove_all(folder);
}

TEST(NamedOperationsInC, EveryKindRunsBetweenProcessesThatMeetAtRankZero) {
  setenv("AGSPEED_JOB_KEY", "a secret of this job", 1);
  runRanks("tcp:127.0.0.1:" + std::to_string(freePort()));
  unsetenv("AGSPEED_JOB_KEY");
}

TEST(NamedOperationsInC, TheRendezvousAndTheRanksAreChecked) {
  AgGroup* group = nullptr;
  EXPECT_EQ(ag_group_create("/tmp", 0, 1, nullptr, &group), AG_INVALID_ARGUMENT);
  EXPECT_THAT(ag_last_error(), HasSubstr("'/tmp'"));
  EXPECT_EQ(ag_group_create("tcp:127.0.0.1:0", 0, 1, nullptr, &group), AG_INVALID_ARGUMENT);
  EXPECT_THAT(ag_last_error(), HasSubstr("needs a job key"));
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
