// SPDX-License-Identifier: Apache-2.0
// One rank of a ring that all-reduces through a network table, for benchmarks.
//
// Each rank runs on a host of its own; they find each other by sockets in the file system. Slices are as NCCL's: up to
// 1 MiB, with a few in flight. An operation ends when all ranks are done. Prints one line of JSON.
//
//   comm_nccl_net_ring RANK RANKS MEET LIBRARY TABLE CONNECTIONS BYTES SLICES SECONDS OPERATIONS
//
// TABLE: 6 to 12, or 0 for NCCL's own socket transport. CONNECTIONS: from each rank to the next. BYTES: size of the
// buffer. SLICES: in flight on a connection. SECONDS, OPERATIONS: the program ends when this time has passed and this
// number of operations is done. It compares the sums of the last one.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "tests/comm/nccl_net/process_pair.h"
#include "tests/comm/nccl_net/program.h"
#include "tests/comm/nccl_net/ring.h"

namespace agspeed::comm::nccl {
namespace {

using Time = std::chrono::steady_clock;
constexpr size_t kLongestSlice = (size_t{1} << 20) / sizeof(float);

struct Task {
  size_t rank = 0;
  size_t size = 0;
  std::string rendezvous;
  TableSource source;
  size_t numFloats = 0;
  Slicing slicing;
  double seconds = 0;
  size_t leastOperations = 1;
};

Task readTask(char** words) {
  Task task;
  task.rank = std::strtoull(words[1], nullptr, 10);
  task.size = std::strtoull(words[2], nullptr, 10);
  task.rendezvous = words[3];
  task.source = {"", words[4], std::atoi(words[5])};
  task.slicing.numConnections = std::strtoull(words[6], nullptr, 10);
  task.numFloats = std::strtoull(words[7], nullptr, 10) / sizeof(float);
  task.slicing.mostUnderWay = std::strtoull(words[8], nullptr, 10);
  task.seconds = std::strtod(words[9], nullptr);
  task.leastOperations = std::strtoull(words[10], nullptr, 10);
  const size_t ways = task.size * task.slicing.numConnections;
  task.slicing.numFloats = std::clamp<size_t>((task.numFloats + ways - 1) / ways, 1, kLongestSlice);
  return task;
}

/// Returns rank 0's decision whether another operation follows.
bool isOneMore(Group& group, bool wantsMore) {
  std::byte more = wantsMore ? std::byte{1} : std::byte{0};
  if (group.rank() != 0) {
    group.side(0).hear(std::span(&more, 1));
  } else {
    for (size_t peer = 1; peer < group.size(); ++peer) group.side(peer).tell(std::span(&more, 1));
  }
  return more == std::byte{1};
}

int runTask(const Task& task) {
  const LoadedTable loaded = loadTable(task.source);
  require(loaded.table != nullptr, loaded.whyNot);
  requireOk(loaded.table->init(), "init");
  Group group(*loaded.table, task.rank, connectAll(task.rendezvous, task.rank, task.size));
  Ring ring(group, task.numFloats, task.slicing);
  std::vector<double> seconds;
  const double before = processorSeconds();
  const Time::time_point limit =
      Time::now() + std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(task.seconds));
  do {
    ring.reset();
    group.barrier();
    const Time::time_point begin = Time::now();
    ring.allReduce();
    group.barrier();
    seconds.push_back(std::chrono::duration<double>(Time::now() - begin).count());
  } while (isOneMore(group, Time::now() < limit || seconds.size() < task.leastOperations));
  const double used = processorSeconds() - before;
  const Floats sum = sumOfInputs(task.size, task.numFloats);
  size_t numWrong = 0;
  for (size_t i = 0; i < sum.size(); ++i) numWrong += ring.values()[i] != sum[i] ? 1 : 0;
  group.barrier();
  ring.close();
  requireOk(loaded.table->finalize(), "finalize");
  std::printf("{\"operations\": %zu, \"wrong_values\": %zu, \"cpu_seconds\": %.6f, \"seconds\": [", seconds.size(),
              numWrong, used);
  for (size_t i = 0; i < seconds.size(); ++i) std::printf("%s%.9f", i > 0 ? ", " : "", seconds[i]);
  std::printf("]}\n");
  return 0;
}

}  // namespace
}  // namespace agspeed::comm::nccl

int main(int count, char** words) {
  try {
    if (count != 11) throw agspeed::comm::nccl::SideFailure("ten arguments are needed");
    return agspeed::comm::nccl::runTask(agspeed::comm::nccl::readTask(words));
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
