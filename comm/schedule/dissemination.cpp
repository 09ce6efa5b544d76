// SPDX-License-Identifier: Apache-2.0
// Dissemination: in the round of distance d = 1, 2, 4, ... every rank r sends all data that it has to rank r - d. This
// works for any number of ranks p: after ceil(log2 p) rounds every rank has all data.
#include <algorithm>

#include "comm/schedule/algorithms.h"

namespace agspeed::comm::schedule {

namespace {

using B = ScheduleBuilder;

/// Splits `count` chunks from `first`, modulo `size`, into one or two runs of consecutive chunks. Calls f(first, count,
/// i) for run i.
template <typename F>
void forEachRun(int first, int count, int size, F f) {
  const int beforeEnd = std::min(count, size - first);
  f(static_cast<uint32_t>(first), static_cast<uint32_t>(beforeEnd), 0u);
  if (beforeEnd < count) f(0u, static_cast<uint32_t>(count - beforeEnd), 1u);
}

}  // namespace

Schedule disseminationAllGather(const ScheduleRequest& request) {
  const int size = request.numRanks;
  B builder(request, static_cast<uint32_t>(size));
  builder.copy(B::output(static_cast<uint32_t>(request.rank)), B::input(static_cast<uint32_t>(request.rank)));
  uint32_t tag = 0;
  for (int distance = 1; distance < size; distance *= 2, tag += 2) {
    const int to = (request.rank + size - distance) % size, from = (request.rank + distance) % size;
    const int count = std::min(distance, size - distance);
    forEachRun(request.rank, count, size, [&](uint32_t first, uint32_t length, uint32_t run) {
      builder.send(to, B::output(first, length), tag + run);
    });
    forEachRun(from, count, size, [&](uint32_t first, uint32_t length, uint32_t run) {
      builder.receive(from, B::output(first, length), tag + run);
    });
  }
  return std::move(builder).build();
}

Schedule disseminationBarrier(const ScheduleRequest& request) {
  // In each round, a rank sends on the token that it received in the round before. So a message leaves only after all
  // earlier messages have arrived. Two consecutive tokens are received into different memory. Otherwise a rank could
  // start a receive only after its last send has completed, and the ranks would wait for each other in a cycle.
  const int size = request.numRanks;
  B builder(request, 1);
  const ChunkRange token = builder.scratch(B::input(0));
  builder.copy(token, B::input(0));
  uint32_t tag = 0;
  for (int distance = 1; distance < size; distance *= 2, ++tag) {
    builder.send((request.rank + size - distance) % size, token, tag);
    const ChunkRange arriving = builder.scratch(B::input(0));
    builder.receive((request.rank + distance) % size, arriving, tag);
    builder.copy(token, arriving);
  }
  return std::move(builder).build();
}

}  // namespace agspeed::comm::schedule
