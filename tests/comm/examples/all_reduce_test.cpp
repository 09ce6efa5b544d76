// SPDX-License-Identifier: Apache-2.0
// The example as users start it: separate processes that meet in a folder.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kSize = 4;

class AllReduceExample : public testing::Test {
 protected:
  AllReduceExample() {
    std::string pattern = (std::filesystem::temp_directory_path() / "agspeed-example-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    std::filesystem::create_directory(folder_ / "store");
  }
  ~AllReduceExample() override {
    for (const pid_t child : children_) {
      if (child > 0) ::kill(child, SIGKILL);
      if (child > 0) waitpid(child, nullptr, 0);
    }
    std::filesystem::remove_all(folder_);
  }

  /// Starts the example with these arguments. Its output goes to a file.
  void start(const std::vector<std::string>& arguments) {
    const std::string path = outputPath(children_.size());
    const pid_t child = fork();
    if (child == 0) {
      setenv("AGSPEED_SOCKET_IFNAME", "lo", 1);
      const int output = open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
      dup2(output, STDOUT_FILENO);
      dup2(output, STDERR_FILENO);
      std::vector<std::string> words = {AG_ALL_REDUCE};
      words.insert(words.end(), arguments.begin(), arguments.end());
      std::vector<char*> pointers;
      for (std::string& word : words) pointers.push_back(word.data());
      pointers.push_back(nullptr);
      alarm(120);
      execv(pointers[0], pointers.data());
      _exit(127);
    }
    children_.push_back(child);
  }
  void startAllRanks(const std::string& numRounds) {
    for (int rank = 0; rank < kSize; ++rank) {
      start({std::to_string(rank), std::to_string(kSize), (folder_ / "store").string(), numRounds});
    }
  }
  /// The exit status of a process, or minus its signal.
  int wait(size_t index) {
    int status = 0;
    waitpid(std::exchange(children_[index], 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  void kill(size_t index) { ::kill(children_[index], SIGKILL); }

  std::string output(size_t index) const {
    std::ifstream file(outputPath(index));
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  /// Returns once the process has printed `text`, or false after a minute.
  bool waitForOutput(size_t index, const std::string& text) const {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (output(index).find(text) == std::string::npos) {
      if (std::chrono::steady_clock::now() > limit) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

 private:
  std::string outputPath(size_t index) const { return (folder_ / ("output" + std::to_string(index))).string(); }

  std::filesystem::path folder_;
  std::vector<pid_t> children_;
};

TEST_F(AllReduceExample, SumsOverFourProcesses) {
  startAllRanks("3");
  for (size_t rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(wait(rank), 0) << output(rank);
    EXPECT_THAT(output(rank), HasSubstr("round 3: the sum over 4 ranks is right"));
  }
}

TEST_F(AllReduceExample, NamesARankThatWasKilled) {
  constexpr size_t kVictim = 2;
  startAllRanks("1000000");
  ASSERT_TRUE(waitForOutput(kVictim, "round 2:")) << output(kVictim);
  kill(kVictim);
  EXPECT_EQ(wait(kVictim), -SIGKILL);
  for (const size_t rank : {0u, 1u, 3u}) {
    EXPECT_EQ(wait(rank), 1) << output(rank);
    EXPECT_THAT(output(rank), AllOf(HasSubstr("rank 2 is lost"), HasSubstr("all_reduce(250000 x f32, sum)")));
  }
}

TEST_F(AllReduceExample, SaysHowItIsUsed) {
  start({"4", "4", "/"});
  EXPECT_EQ(wait(0), 2);
  EXPECT_THAT(output(0), HasSubstr("usage: all_reduce RANK SIZE FOLDER"));
}

}  // namespace
