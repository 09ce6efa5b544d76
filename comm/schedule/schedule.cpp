// SPDX-License-Identifier: Apache-2.0
#include "comm/schedule/schedule.h"

#include <algorithm>

namespace agspeed::comm::schedule {

std::string_view toString(Collective collective) {
  switch (collective) {
    case Collective::kAllGather: return "all_gather";
    case Collective::kAllReduce: return "all_reduce";
    case Collective::kAllToAll: return "all_to_all";
    case Collective::kBarrier: return "barrier";
    case Collective::kBroadcast: return "broadcast";
    case Collective::kGather: return "gather";
    case Collective::kReduce: return "reduce";
    case Collective::kReduceScatter: return "reduce_scatter";
    case Collective::kScatter: return "scatter";
  }
  return "unknown";
}

bool isReduction(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}

bool hasRoot(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kGather ||
         collective == Collective::kReduce || collective == Collective::kScatter;
}

bool isDivisible(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kBroadcast ||
         collective == Collective::kReduce;
}

bool Schedule::overlap(const ChunkRange& a, const ChunkRange& b) const {
  const bool isScratch = a.buffer == BufferKind::kScratch;
  if (isScratch != (b.buffer == BufferKind::kScratch) || (isScratch && a.scratch != b.scratch)) return false;
  if (!mayBeInPlace && a.buffer != b.buffer) return false;
  return a.first < b.first + b.count && b.first < a.first + a.count;
}

bool Schedule::conflict(const Step& a, const Step& b) const {
  const auto writesWhatTouches = [&](const Step& writer, const Step& other) {
    if (writer.kind == StepKind::kSend) return false;
    return overlap(writer.range, other.range) ||
           std::any_of(other.sources.begin(), other.sources.end(),
                       [&](const ChunkRange& source) { return overlap(writer.range, source); });
  };
  return writesWhatTouches(a, b) || writesWhatTouches(b, a);
}

}  // namespace agspeed::comm::schedule
