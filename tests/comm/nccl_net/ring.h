// SPDX-License-Identifier: Apache-2.0
// Replays operations on host memory as NCCL's progress thread runs them. Data are cut into slices, a few are in flight
// on each connection, and the oldest one of each connection is tested. A ring is pipelined: a slice is forwarded as
// soon as it has arrived, as in NCCL's ring algorithm (prims_simple.h: recvReduceSend).
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "tests/comm/nccl_net/process_pair.h"

namespace agspeed::comm::nccl {

using Floats = std::vector<float>;

/// One direction: slices in order, with a few in flight.
class Stream {
 public:
  Stream(Side& side, void* comm, bool isSending, size_t mostUnderWay)
      : side_(side), comm_(comm), isSending_(isSending), mostUnderWay_(mostUnderWay) {}

  /// Adds a slice. `memory` is called when the slice is started, and returns the memory of the slice, which stays in
  /// place until the slice is done. `arrived` is called when the slice has arrived or has left. It may add slices to
  /// any stream.
  void add(std::function<std::span<float>()> memory, std::function<void()> arrived = {}) {
    waiting_.push_back({std::move(memory), std::move(arrived)});
  }
  bool isDone() const { return waiting_.empty() && underWay_.empty(); }
  /// Returns true if a slice was started or completed.
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

/// Drives the streams until all are done. Throws if they are not within 40 s.
void drive(std::span<Stream* const> streams);

/// How a ring's data are cut into slices.
struct Slicing {
  size_t numFloats = 50000;   ///< number in a slice; a chunk's last slice may have fewer
  size_t mostUnderWay = 8;    ///< slices in flight each way on a connection; NCCL has 8 steps
  size_t numConnections = 1;  ///< each way; slices use them in turn
};

/// Returns a rank's input: small whole numbers, so that sums are exact in any order.
Floats inputOf(size_t rank, size_t count);
/// Returns the sum of the inputs of ranks 0 to size - 1.
Floats sumOfInputs(size_t size, size_t count);

/// One rank of a ring in which rank r sends to r + 1. Chunk c of a buffer is reduced around the ring, then passed
/// around. Slices are sent from and received into buffers of their own, as NCCL's are. So values change only in this
/// class.
class Ring {
 public:
  Ring(Group& group, size_t count, const Slicing& slicing = {});

  /// Sets the values to this rank's input.
  void reset() { values_ = input_; }
  /// Chunk rank + 1 contains the sum afterwards.
  void reduceScatter() { run(0, size_ - 1); }
  /// Call it after reduceScatter. All of values() contains the sum afterwards.
  void allGather() { run(size_ - 1, 2 * (size_ - 1)); }
  /// Runs reduceScatter and allGather without a pause.
  void allReduce() { run(0, 2 * (size_ - 1)); }

  std::span<float> chunk(size_t index);
  const Floats& values() const { return values_; }
  void close();

 private:
  /// A connection each way, and the buffers of slices.
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
  /// Returns the number of slices of a chunk. It is the same for all chunks, so the last slices of a short chunk may be
  /// empty.
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
