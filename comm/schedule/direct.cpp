// SPDX-License-Identifier: Apache-2.0
// Direct algorithms: in each phase, a rank sends one message to every rank that needs its data. No other rank forwards
// this data.
//
// A buffer has a chunk per rank. To reduce, the owner of a chunk receives all contributions and reduces them in one
// step. To gather, every owner sends its chunk to all ranks. Each rank sends and receives the least possible bytes, in
// one or two rounds of p - 1 messages. Rank r sends to rank r + 1 first, then to r + 2, and so on. So not all ranks
// send to the same rank first.
#include "comm/schedule/algorithms.h"

namespace agspeed::comm::schedule {

namespace {

using B = ScheduleBuilder;

/// Visits the peers of a rank in the order of their distance.
class Peers {
 public:
  explicit Peers(const ScheduleRequest& request) : rank_(request.rank), size_(request.numRanks) {}

  /// Calls f(to, from) for every distance: `to` is the rank at that distance after this rank, `from` the rank at that
  /// distance before it.
  template <typename F>
  void forEach(F f) const {
    for (int distance = 1; distance < size_; ++distance) {
      f((rank_ + distance) % size_, (rank_ + size_ - distance) % size_);
    }
  }

 private:
  const int rank_, size_;
};

uint32_t chunk(int rank) { return static_cast<uint32_t>(rank); }
uint32_t numChunks(const ScheduleRequest& request) { return static_cast<uint32_t>(request.numRanks); }

/// Adds the steps that reduce each chunk at its owner. Every rank sends input chunk i to rank i. Rank i reduces the
/// received chunks and its own chunk into `target`.
void reduceToOwners(B& builder, const ScheduleRequest& request, const ChunkRange& target) {
  const uint32_t own = chunk(request.rank);
  std::vector<ChunkRange> contributions(static_cast<size_t>(request.numRanks), B::input(own));
  Peers(request).forEach([&](int to, int from) {
    builder.send(to, B::input(chunk(to)));
    contributions[static_cast<size_t>(from)] = builder.scratch(B::input(own));
    builder.receive(from, contributions[static_cast<size_t>(from)]);
  });
  builder.reduceFinally(target, contributions);
}

/// Adds the steps that gather all chunks at all ranks: every rank sends its output chunk to all ranks, and receives
/// their chunks.
void gatherFromOwners(B& builder, const ScheduleRequest& request) {
  Peers(request).forEach([&](int to, int from) {
    builder.send(to, B::output(chunk(request.rank)), 1);
    builder.receive(from, B::output(chunk(from)), 1);
  });
}

/// Adds the steps that gather all chunks at the root. All other ranks send their `own` chunk to the root. The root
/// receives it as the output chunk of that rank. The caller writes the root's own output chunk.
void gatherAtRoot(B& builder, const ScheduleRequest& request, const ChunkRange& own) {
  if (request.rank != request.root) return builder.send(request.root, own, 1);
  Peers(request).forEach([&](int, int from) { builder.receive(from, B::output(chunk(from)), 1); });
}

}  // namespace

Schedule directAllReduce(const ScheduleRequest& request) {
  B builder(request, numChunks(request));
  reduceToOwners(builder, request, B::output(chunk(request.rank)));
  gatherFromOwners(builder, request);
  return std::move(builder).build();
}

Schedule directReduceScatter(const ScheduleRequest& request) {
  B builder(request, numChunks(request));
  reduceToOwners(builder, request, B::output(chunk(request.rank)));
  return std::move(builder).build();
}

Schedule directReduce(const ScheduleRequest& request) {
  // Owners other than the root keep their chunk of the result in scratch, because they must not write their output.
  B builder(request, numChunks(request));
  const uint32_t own = chunk(request.rank);
  const ChunkRange result = request.rank == request.root ? B::output(own) : builder.scratch(B::input(own));
  reduceToOwners(builder, request, result);
  gatherAtRoot(builder, request, result);
  return std::move(builder).build();
}

Schedule directAllGather(const ScheduleRequest& request) {
  B builder(request, numChunks(request));
  const uint32_t own = chunk(request.rank);
  Peers(request).forEach([&](int to, int from) {
    builder.send(to, B::input(own));
    builder.receive(from, B::output(chunk(from)));
  });
  builder.copy(B::output(own), B::input(own));
  return std::move(builder).build();
}

Schedule directBroadcast(const ScheduleRequest& request) {
  // The buffer has a chunk for every rank except the root. The root sends each rank its chunk. The ranks then exchange
  // their chunks.
  const int size = request.numRanks;
  const uint32_t count = size == 1 ? 1 : numChunks(request) - 1;
  B builder(request, count);
  const auto ownerOf = [&](int distance) { return (request.root + distance) % size; };
  const auto chunkAt = [](int distance) { return B::output(chunk(distance - 1)); };
  const int own = (request.rank + size - request.root) % size;  // the distance of this rank from the root
  if (own == 0) {
    for (int to = 1; to < size; ++to) builder.send(ownerOf(to), B::input(chunk(to - 1)));
    builder.copy(B::output(0, count), B::input(0, count));
    return std::move(builder).build();
  }
  builder.receive(request.root, chunkAt(own));
  for (int step = 1; step < size - 1; ++step) {
    const int to = 1 + (own - 1 + step) % (size - 1), from = 1 + (own - 1 + size - 1 - step) % (size - 1);
    builder.send(ownerOf(to), chunkAt(own), 1);
    builder.receive(ownerOf(from), chunkAt(from), 1);
  }
  return std::move(builder).build();
}

Schedule directGather(const ScheduleRequest& request) {
  B builder(request, numChunks(request));
  const ChunkRange own = B::input(chunk(request.rank));
  gatherAtRoot(builder, request, own);
  if (request.rank == request.root) builder.copy(B::output(chunk(request.rank)), own);
  return std::move(builder).build();
}

Schedule directScatter(const ScheduleRequest& request) {
  B builder(request, numChunks(request));
  const uint32_t own = chunk(request.rank);
  if (request.rank != request.root) {
    builder.receive(request.root, B::output(own));
  } else {
    Peers(request).forEach([&](int to, int) { builder.send(to, B::input(chunk(to))); });
    builder.copy(B::output(own), B::input(own));
  }
  return std::move(builder).build();
}

Schedule directAllToAll(const ScheduleRequest& request) {
  B builder(request, numChunks(request));
  Peers(request).forEach([&](int to, int from) {
    builder.send(to, B::input(chunk(to)));
    builder.receive(from, B::output(chunk(from)));
  });
  builder.copy(B::output(chunk(request.rank)), B::input(chunk(request.rank)));
  return std::move(builder).build();
}

}  // namespace agspeed::comm::schedule
