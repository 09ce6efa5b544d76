// SPDX-License-Identifier: Apache-2.0
// Ring: every rank communicates only with its two neighbours.
//
// The buffer has a chunk per rank. In p - 1 rounds each chunk travels once around the ring, and every rank reduces its
// contribution into it. In p - 1 more rounds the results travel around the ring. The order in which the ranks' values
// of an element are added depends on its position in the buffer, so this order is not canonical. The algorithm sends
// the least possible bytes, but 2 (p - 1) messages one after another. Use it on networks in which a rank reaches only
// its neighbours quickly.
#include "comm/schedule/algorithms.h"

namespace agspeed::comm::schedule {

Schedule ringAllReduce(const ScheduleRequest& request) {
  using B = ScheduleBuilder;
  const int size = request.numRanks;
  B builder(request, static_cast<uint32_t>(size));
  const int next = (request.rank + 1) % size, previous = (request.rank + size - 1) % size;
  const auto chunkAt = [&](int round) { return static_cast<uint32_t>((request.rank + 2 * size - round) % size); };
  ChunkRange travelling = B::input(chunkAt(0));
  for (int round = 0; round + 1 < size; ++round) {
    const ChunkRange own = B::input(chunkAt(round + 1));
    const bool isFirst = round == 0, isLast = round + 2 == size;
    const ChunkRange arriving = isFirst ? builder.scratch(own) : builder.wideScratch(own);
    builder.send(next, travelling, static_cast<uint32_t>(round));
    builder.receive(previous, arriving, static_cast<uint32_t>(round));
    if (isLast) {
      builder.reduceFinally(B::output(own.first), {arriving, own});
    } else {
      travelling = builder.wideScratch(own);
      builder.reducePartly(travelling, {arriving, own});
    }
  }
  if (size == 1) builder.reduceFinally(B::output(0), {B::input(0)});
  for (int round = 0; round + 1 < size; ++round) {
    const auto tag = static_cast<uint32_t>(size + round);
    builder.send(next, B::output(chunkAt(round + size - 1)), tag);
    builder.receive(previous, B::output(chunkAt(round)), tag);
  }
  return std::move(builder).build();
}

}  // namespace agspeed::comm::schedule
