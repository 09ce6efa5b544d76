// SPDX-License-Identifier: Apache-2.0
// Sums numbers over several processes, in rounds. This is a complete program that uses comm without torch.
//
//   all_reduce RANK SIZE FOLDER [ROUNDS]
//
// Start it SIZE times, once per RANK from 0, with one FOLDER that all processes can write to and that belongs to this
// job. Environment variables select interfaces, security and timeouts as for the backend (runtime/base/settings.md);
// AGSPEED_SOCKET_IFNAME=lo keeps a job of one machine on the loopback interface. Exit status: 0 if all sums were right;
// 1 if the group failed, with an error that names the cause; 2 for wrong arguments.
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "comm/api.h"

namespace {

using namespace agspeed;

constexpr size_t kNumElements = 250000;

/// Sums `rank` + 1 over all ranks, element by element, and compares with the expected sum.
Status sumOnce(comm::Communicator& group) {
  std::vector<float> values(kNumElements, static_cast<float>(group.rank() + 1));
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(values));
  const comm::OperationHandle sum = group.start({.collective = comm::Collective::kAllReduce,
                                                 .dtype = DType::kF32,
                                                 .input = {bytes},
                                                 .output = {bytes},
                                                 .op = comm::ReduceOp::kSum});
  AG_RETURN_IF_ERROR(sum->wait());
  const auto expected = static_cast<float>(group.size() * (group.size() + 1) / 2);
  for (const float value : values) {
    if (value != expected) return internalError("the sum is {} instead of {}", value, expected);
  }
  return {};
}

Status sumOverRanks(int rank, int size, const char* folder, int numRounds) {
  AG_ASSIGN_OR_RETURN(const auto world, comm::World::create(std::make_shared<comm::FileStore>(folder), rank, size));
  AG_ASSIGN_OR_RETURN(const auto group, comm::Communicator::create(world->engine(), {.name = "example"}));
  for (int round = 1; round <= numRounds; ++round) {
    AG_RETURN_IF_ERROR(sumOnce(*group));
    std::printf("rank %d: round %d: the sum over %d ranks is right\n", rank, round, size);
    std::fflush(stdout);
  }
  // Wait for all ranks, so that no rank leaves while others may still need it.
  return group->start({.collective = comm::Collective::kBarrier})->wait();
}

/// Returns the number in the text, or -1 if the text is not a number.
int numberFrom(const char* text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), number);
  return error == std::errc() && *end == '\0' ? number : -1;
}

}  // namespace

int main(int argc, char** argv) {
  const int rank = argc > 1 ? numberFrom(argv[1]) : -1;
  const int size = argc > 2 ? numberFrom(argv[2]) : -1;
  const int numRounds = argc > 4 ? numberFrom(argv[4]) : 1;
  const bool isUsable = rank >= 0 && rank < size && numRounds >= 0;
  if (argc < 4 || argc > 5 || !isUsable || !std::filesystem::is_directory(argv[3])) {
    std::fprintf(stderr,
                 "usage: all_reduce RANK SIZE FOLDER [ROUNDS], with 0 <= RANK < SIZE and a folder that exists\n");
    return 2;
  }
  const Status status = sumOverRanks(rank, size, argv[3], numRounds);
  if (status.isOk()) return 0;
  std::fprintf(stderr, "rank %d: %s\n", rank, status.message().c_str());
  return 1;
}
