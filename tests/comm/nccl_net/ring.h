// SPDX-License-Identifier: Apache-2.0
// Operations as NCCL's progress thread runs them, replayed on host memory: what is sent is cut into slices, a few are
// under way on each connection, and of each connection the oldest is tested. A ring is pipelined: a slice goes on as
// soon as it has come, as in NCCL's ring algorithm (prims_simple.h: recvReduceSend).
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "tests/comm/nccl_net/process_pair.h"

namespace agspeed::comm::nccl {

using Floats = std::vector<float>;

/// One direction: slices in order, a few under way.
class Stream {
 public:
  Stream(Side& side, void* comm, bool isSending, size_t mostUnderWay)
      : side_(side), comm_(comm), isSending_(isSending), mostUnderWay_(mostUnderWay) {}

  /// `memory` is called when the slice's turn comes: where it lies until it is done. `arrived`: called when it is
  /// there, or has left; it may add slices to any stream.
  void add(std::function<std::span<float>()> memory, std::function<void()> arrived = {}) {
    waiting_.push_back({std::move(memory), std::move(arrived)});
  }
  bool isDone() const { return waiting_.empty() && underWay_.empty(); }
  /// Returns: whether anything moved.
  bool advance();

 private:
  struct Slice {
    std::function<std::span<float>()> memory;
    std::function<void()> arrived;
  };
  struct Step {
    Pending pending;
    std::function<void()> arrived;
  };
  Side& side_;
  void* comm_;
  const bool isSending_;
  const size_t mostUnderWay_;
  std::deque<Slice> waiting_;
  std::deque<Step> underWay_;
};

/// Until all are done; throws when they are not after 40 s.
void drive(std::span<Stream* const> streams);

/// How a ring's data is cut.
struct Slicing {
  size_t numFloats = 50000;   ///< of a slice; a chunk's last one is shorter
  size_t mostUnderWay = 8;    ///< each way, on a connection; NCCL has 8 steps
  size_t numConnections = 1;  ///< each way; slices are dealt to them in turn
};

/// What a rank contributes; small whole numbers, so that sums are exact in any order.
Floats inputOf(size_t rank, size_t count);
/// Of ranks 0 to size - 1.
Floats sumOfInputs(size_t size, size_t count);

/// Of a ring in which rank r sends to r + 1. Chunk c of a buffer is reduced around it, then handed around. Slices are
/// sent from and received into buffers of their own, as NCCL's are, so that values change only here.
class Ring {
 public:
  Ring(Group& group, size_t count, const Slicing& slicing = {});

  /// Values are what this rank contributes.
  void reset() { values_ = input_; }
  /// Chunk rank + 1 is the sum then.
  void reduceScatter() { run(0, size_ - 1); }
  /// Follows reduceScatter: all of values() is the sum then.
  void allGather() { run(size_ - 1, 2 * (size_ - 1)); }
  /// The two as one.
  void allReduce() { run(0, 2 * (size_ - 1)); }

  std::span<float> chunk(size_t index);
  const Floats& values() const { return values_; }
  void close();

 private:
  /// A connection each way, and the slices' buffers.
  struct Lane {
    void* send = nullptr;
    void* receive = nullptr;
    std::vector<Floats> outBuffers, inBuffers;
    size_t numSent = 0, numReceived = 0, numArrived = 0;
    Stream out, in;
  };
  Side& next();
  Lane open(int device);
  void run(size_t firstStep, size_t endStep);
  /// Chunks of all ranks have as many; the last ones may be empty.
  size_t numSlices() const;
  std::span<float> slice(size_t chunk, size_t index);
  void send(size_t step, size_t index);
  void receive(size_t step, size_t index, size_t endStep);

  Group& group_;
  const size_t size_;
  const Slicing slicing_;
  const Floats input_;
  Floats values_;
  std::deque<Lane> lanes_;
};

}  // namespace agspeed::comm::nccl
