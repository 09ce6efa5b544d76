// SPDX-License-Identifier: Apache-2.0
// Ranks in separate processes that share memory. Every byte depends on sender, receiver, message and position.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>

#include "tests/comm/network/network_group.h"

namespace agspeed::comm::network {
namespace {

using std::chrono::seconds;

constexpr int kFine = 0;

/// Children report errors by their exit status, because the test does not see the memory that they write.
class Processes : public testing::Test {
 protected:
  Processes() {
    std::string pattern = (std::filesystem::temp_directory_path() / "agspeed-shm-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~Processes() override { std::filesystem::remove_all(folder_); }

  /// Runs `body` as each rank in a process of its own and returns their exit statuses, or minus their signals.
  std::vector<int> run(int size, const std::function<int(NetworkMessenger&)>& body) {
    std::vector<pid_t> children;
    for (int rank = 0; rank < size; ++rank) {
      const pid_t child = fork();
      if (child == 0) _exit(runRank(rank, size, body));
      children.push_back(child);
    }
    std::vector<int> results;
    for (const pid_t child : children) {
      int status = 0;
      waitpid(child, &status, 0);
      results.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    }
    return results;
  }

 private:
  int runRank(int rank, int size, const std::function<int(NetworkMessenger&)>& body) const {
    alarm(120);
    rendezvous::FileStore store(folder_);
    NetworkOptions options = loopbackOptions(rank, size, 1);
    options.sharesMemory = true;
    auto messenger = NetworkMessenger::create(store, options);
    return messenger.hasValue() ? body(**messenger) : 100;
  }

  std::string folder_;
};

void fill(Parcel& parcel, int source, int destination) {
  const uint64_t salt = parcel.id.sequence * 1009 + static_cast<uint64_t>(source * 7 + destination);
  for (size_t i = 0; i < parcel.storage.size(); ++i) {
    parcel.storage[i] = static_cast<std::byte>((salt + i * 2654435761u + i / 251) >> 3);
  }
}

/// Sends and receives a message with every rank in every round. Sizes follow from seed, round and ranks.
int exchangeInRounds(NetworkMessenger& messenger, uint64_t seed, uint64_t numRounds) {
  constexpr size_t kSizes[] = {0, 1, 8, 1000, 16384, 65535, 65536, 300001, 3000000};
  const int own = messenger.rank();
  for (uint64_t round = 0; round < numRounds; ++round) {
    std::vector<std::unique_ptr<Parcel>> sends, receives;
    for (int peer = 0; peer < messenger.size(); ++peer) {
      if (peer == own) continue;
      const auto sizeOf = [&](int from, int to) {
        return kSizes[std::mt19937_64(seed + round * 64 + static_cast<uint64_t>(from * 8 + to))() % std::size(kSizes)];
      };
      sends.push_back(std::make_unique<Parcel>(peer, wire::MessageId{1, 1, round}, sizeOf(own, peer)));
      receives.push_back(std::make_unique<Parcel>(peer, wire::MessageId{1, 1, round}, sizeOf(peer, own)));
      fill(*sends.back(), own, peer);
      if ((seed + round) % 2 == 0) messenger.receive(*receives.back());
      messenger.send(*sends.back());
      if ((seed + round) % 2 == 1) messenger.receive(*receives.back());
    }
    const io::Clock::time_point limit = io::Clock::now() + seconds(60);
    const auto isDone = [](const auto& parcel) { return parcel->numFinished > 0; };
    while (!std::all_of(sends.begin(), sends.end(), isDone) || !std::all_of(receives.begin(), receives.end(), isDone)) {
      if (io::Clock::now() > limit) return 1;
      messenger.progress(limit);
    }
    for (const auto& receive : receives) {
      Parcel expected(own, receive->id, receive->storage.size());
      fill(expected, receive->peer, own);
      if (!receive->status.isOk()) return 2;
      if (expected.storage != receive->storage) return 3;
    }
  }
  if (messenger.sharedMemoryCounters()->numFrames == 0 || messenger.counters().rails[0].numFrames > 0) return 4;
  return kFine;
}

TEST_F(Processes, ExchangeRandomMessages) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const std::vector<int> results =
      run(4, [&](NetworkMessenger& messenger) { return exchangeInRounds(messenger, seed, 40); });
  EXPECT_THAT(results, testing::Each(kFine));
}

TEST_F(Processes, AKilledRankIsNamedByTheOthers) {
  constexpr int kVictim = 1;
  const std::vector<int> results = run(4, [&](NetworkMessenger& messenger) {
    if (exchangeInRounds(messenger, 1, 4) != kFine) return 1;
    if (messenger.rank() == kVictim) raise(SIGKILL);
    Parcel receive(kVictim, {9, 9, 9}, 1000000), send(kVictim, {9, 9, 8}, 1000000);
    messenger.receive(receive);
    messenger.send(send);
    const io::Clock::time_point limit = io::Clock::now() + seconds(60);
    while ((receive.numFinished == 0 || send.numFinished == 0) && io::Clock::now() < limit) messenger.progress(limit);
    const bool isNamed = receive.status.message().find("rank 1") != std::string::npos;
    const bool isTyped =
        receive.status.code() == StatusCode::kUnavailable && send.status.code() == StatusCode::kUnavailable;
    return isNamed && isTyped ? kFine : 2;
  });
  EXPECT_THAT(results, testing::ElementsAre(kFine, -SIGKILL, kFine, kFine));
}

TEST_F(Processes, ARankThatEndsWhileItsChildLivesOnIsNoticed) {
  const std::vector<int> results = run(2, [&](NetworkMessenger& messenger) {
    if (exchangeInRounds(messenger, 2, 4) != kFine) return 1;
    if (messenger.rank() == 1) {
      if (fork() == 0) {  // this child keeps every descriptor of its parent open
        close(STDOUT_FILENO);
        close(STDERR_FILENO);
        alarm(20);
        while (true) pause();
      }
      raise(SIGKILL);
    }
    Parcel receive(1, {9, 9, 9}, 10);
    const io::Clock::time_point limit = io::Clock::now() + seconds(10);
    messenger.receive(receive);
    while (receive.numFinished == 0 && io::Clock::now() < limit) messenger.progress(limit);
    return receive.status.code() == StatusCode::kUnavailable ? kFine : 2;
  });
  EXPECT_THAT(results, testing::ElementsAre(kFine, -SIGKILL));
}

}  // namespace
}  // namespace agspeed::comm::network
