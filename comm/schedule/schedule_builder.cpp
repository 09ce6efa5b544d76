// SPDX-License-Identifier: Apache-2.0
#include "comm/schedule/schedule_builder.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace agspeed::comm::schedule {

ScheduleBuilder::ScheduleBuilder(const ScheduleRequest& request, uint32_t numChunks) {
  schedule_.rank = request.rank;
  schedule_.numRanks = request.numRanks;
  schedule_.numChunks = numChunks;
  schedule_.mayBeInPlace = request.collective != Collective::kAllToAll;
}

ChunkRange ScheduleBuilder::scratch(const ChunkRange& like) {
  ScratchBuffer buffer{like, false};
  if (like.buffer == BufferKind::kScratch) {
    buffer.like.buffer = schedule_.scratch[like.scratch].like.buffer;
    buffer.like.scratch = 0;
  }
  schedule_.scratch.push_back(buffer);
  return {BufferKind::kScratch, static_cast<uint32_t>(schedule_.scratch.size() - 1), like.first, like.count};
}

ChunkRange ScheduleBuilder::wideScratch(const ChunkRange& like) {
  const ChunkRange range = scratch(like);
  schedule_.scratch.back().isWide = true;
  return range;
}

Step& ScheduleBuilder::add(StepKind kind, const ChunkRange& range) {
  AG_CHECK(range.first + range.count <= schedule_.numChunks, "a range ends behind the last chunk");
  Step step;
  step.kind = kind;
  step.range = range;
  schedule_.steps.push_back(std::move(step));
  return schedule_.steps.back();
}

void ScheduleBuilder::send(int peer, const ChunkRange& range, uint32_t tag) {
  Step& step = add(StepKind::kSend, range);
  step.peer = peer;
  step.tag = tag;
}

void ScheduleBuilder::receive(int peer, const ChunkRange& range, uint32_t tag) {
  send(peer, range, tag);
  schedule_.steps.back().kind = StepKind::kReceive;
}

void ScheduleBuilder::copy(const ChunkRange& target, const ChunkRange& source) {
  add(StepKind::kCopy, target).sources = {source};
}

void ScheduleBuilder::reducePartly(const ChunkRange& target, std::vector<ChunkRange> sources) {
  add(StepKind::kReduce, target).sources = std::move(sources);
}

void ScheduleBuilder::reduceFinally(const ChunkRange& target, std::vector<ChunkRange> sources) {
  reducePartly(target, std::move(sources));
  schedule_.steps.back().isResult = true;
}

Schedule ScheduleBuilder::build() && {
  // Keep only dependencies that are not implied by others. comesBefore[i]: all steps that finish before step i starts.
  std::vector<std::vector<bool>> comesBefore;
  for (size_t i = 0; i < schedule_.steps.size(); ++i) {
    Step& step = schedule_.steps[i];
    std::vector<bool> before(i, false);
    for (size_t j = i; j-- > 0;) {
      if (before[j] || !schedule_.conflict(schedule_.steps[j], step)) continue;
      step.dependencies.push_back(static_cast<uint32_t>(j));
      before[j] = true;
      for (size_t k = 0; k < j; ++k) before[k] = before[k] || comesBefore[j][k];
    }
    comesBefore.push_back(std::move(before));
  }
  return std::move(schedule_);
}

ChunkRange part(const ChunkRange& range, uint32_t first, uint32_t count) {
  ChunkRange result = range;
  result.first = first;
  result.count = count;
  return result;
}

}  // namespace agspeed::comm::schedule
