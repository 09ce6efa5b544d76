// SPDX-License-Identifier: Apache-2.0
// Exchange: every rank sends its whole input to every rank that needs the result. Each of these ranks receives p - 1
// inputs in one round, and reduces them together with its own input in one step. This algorithm is fastest for short
// buffers and few ranks.
#include "comm/schedule/algorithms.h"

namespace agspeed::comm::schedule {

namespace {

using B = ScheduleBuilder;

Schedule exchange(const ScheduleRequest& request, bool isForAll) {
  B builder(request, 1);
  std::vector<ChunkRange> contributions(static_cast<size_t>(request.numRanks), B::input(0));
  const bool needsResult = isForAll || request.rank == request.root;
  for (int distance = 1; distance < request.numRanks; ++distance) {
    const int to = (request.rank + distance) % request.numRanks;
    const int from = (request.rank + request.numRanks - distance) % request.numRanks;
    if (isForAll || to == request.root) builder.send(to, B::input(0));
    if (!needsResult) continue;
    contributions[static_cast<size_t>(from)] = builder.scratch(B::input(0));
    builder.receive(from, contributions[static_cast<size_t>(from)]);
  }
  if (needsResult) builder.reduceFinally(B::output(0), contributions);
  return std::move(builder).build();
}

}  // namespace

Schedule exchangeAllReduce(const ScheduleRequest& request) { return exchange(request, true); }

Schedule exchangeReduce(const ScheduleRequest& request) { return exchange(request, false); }

}  // namespace agspeed::comm::schedule
