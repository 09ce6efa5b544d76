// SPDX-License-Identifier: Apache-2.0
// One of two processes that pass operations through a network table, for benchmarks and fault tests.
//
// Each process runs on a host of its own; they find each other by a socket in the file system. An operation is a number
// of messages, which the connections take in turn. It ends when the receiver has confirmed it over a connection back.
// Prints "ready" when the two are connected, and one line of JSON at the end.
//
//   comm_nccl_net_pair ROLE MEET LIBRARY TABLE CONNECTIONS BYTES MESSAGES SECONDS OPERATIONS CHECK
//
// ROLE: send or receive. TABLE: 6 to 12, or 0 for NCCL's own socket transport. BYTES: size of an operation.
// SECONDS, OPERATIONS: the program ends when this time has passed and this number of operations is done.
// CHECK: 1 to compare the bytes of every operation, 0 to compare the last operation only.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "tests/comm/nccl_net/process_pair.h"
#include "tests/comm/nccl_net/program.h"

namespace agspeed::comm::nccl {
namespace {

using Time = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;

struct Task {
  bool isSender = false;
  std::string rendezvous;
  TableSource source;
  size_t numConnections = 1;
  size_t numBytes = 0;
  size_t numMessages = 1;
  double seconds = 0;
  size_t leastOperations = 1;
  bool checksAll = false;
};

Task readTask(char** words) {
  Task task;
  task.isSender = std::string(words[1]) == "send";
  task.rendezvous = words[2];
  task.source = {"", words[3], std::atoi(words[4])};
  task.numConnections = std::strtoull(words[5], nullptr, 10);
  task.numBytes = std::strtoull(words[6], nullptr, 10);
  task.numMessages = std::strtoull(words[7], nullptr, 10);
  task.seconds = std::strtod(words[8], nullptr);
  task.leastOperations = std::strtoull(words[9], nullptr, 10);
  task.checksAll = std::string(words[10]) == "1";
  return task;
}

/// One end of the connections, which runs the operations.
class Runner {
 public:
  Runner(const Task& task, NetTable& table, int socket) : task_(task), side_(table, socket) {
    int numDevices = 1;
    requireOk(table.devices(numDevices), "devices");
    for (size_t i = 0; i < task.numConnections; ++i) comms_.push_back(open(task.isSender, i, numDevices));
    back_ = open(!task.isSender, 0, numDevices);
    const size_t share = task.numBytes / task.numMessages;
    for (size_t i = 0; i < task.numMessages; ++i) messages_.push_back(patternOf(i, share));
    expected_ = messages_;
  }

  /// Returns the seconds of each operation, as measured by the sender.
  std::vector<double> run() {
    std::vector<double> seconds;
    std::byte more{1};
    const double before = processorSeconds();
    const Time::time_point limit =
        Time::now() + std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(task_.seconds));
    while (more == std::byte{1}) {
      const Time::time_point begin = Time::now();
      pass();
      answer();
      seconds.push_back(std::chrono::duration<double>(Time::now() - begin).count());
      if (!task_.isSender && task_.checksAll) check();
      const bool goesOn = Time::now() < limit || seconds.size() < task_.leastOperations;
      more = goesOn ? std::byte{1} : std::byte{0};
      task_.isSender ? side_.tell(std::span(&more, 1)) : side_.hear(std::span(&more, 1));
    }
    processorSeconds_ = processorSeconds() - before;
    if (!task_.isSender && !task_.checksAll) check();
    side_.barrier();
    close();
    return seconds;
  }
  /// The processor time of run(), without the last comparison.
  double usedSeconds() const { return processorSeconds_; }
  size_t numWrong() const { return numWrong_; }

 private:
  void* open(bool isSending, size_t index, int numDevices) {
    const int device = static_cast<int>(index) % numDevices;
    Handle handle = {};
    if (isSending) {
      side_.hear(handle);
      return side_.connect(handle, device);
    }
    void* listener = side_.listen(handle, device);
    side_.tell(handle);
    void* comm = side_.accept(listener);
    requireOk(side_.table().closeListen(listener), "closeListen");
    return comm;
  }
  void pass() {
    std::vector<Pending> pending;
    for (size_t i = 0; i < messages_.size(); ++i) {
      void* comm = comms_[i % comms_.size()];
      pending.push_back(task_.isSender ? side_.send(comm, messages_[i]) : side_.receive(comm, {messages_[i]}));
    }
    side_.wait(pending);
  }
  void answer() {
    Pending pending = task_.isSender ? side_.receive(back_, {note_}) : side_.send(back_, note_);
    side_.wait(pending);
  }
  void check() {
    for (size_t i = 0; i < messages_.size(); ++i) {
      for (size_t at = 0; at < messages_[i].size(); ++at) numWrong_ += messages_[i][at] != expected_[i][at];
      std::fill(messages_[i].begin(), messages_[i].end(), std::byte{0});
    }
  }
  void close() {
    for (void* comm : comms_) {
      requireOk(task_.isSender ? side_.table().closeSend(comm) : side_.table().closeReceive(comm), "close");
    }
    requireOk(task_.isSender ? side_.table().closeReceive(back_) : side_.table().closeSend(back_), "close");
  }

  const Task& task_;
  Side side_;
  std::vector<void*> comms_;
  void* back_ = nullptr;
  std::vector<Bytes> messages_, expected_;
  Bytes note_ = Bytes(8);
  size_t numWrong_ = 0;
  double processorSeconds_ = 0;
};

int runTask(const Task& task) {
  const LoadedTable loaded = loadTable(task.source);
  require(loaded.table != nullptr, loaded.whyNot);
  requireOk(loaded.table->init(), "init");
  Runner runner(task, *loaded.table, connectAll(task.rendezvous, task.isSender ? 1 : 0, 2)[task.isSender ? 0 : 1]);
  std::puts("ready");
  (void)std::fflush(stdout);
  const std::vector<double> seconds = runner.run();
  requireOk(loaded.table->finalize(), "finalize");
  std::printf("{\"operations\": %zu, \"wrong_bytes\": %zu, \"cpu_seconds\": %.6f, \"seconds\": [", seconds.size(),
              runner.numWrong(), runner.usedSeconds());
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
