// SPDX-License-Identifier: Apache-2.0
#include "comm/schedule/schedule_builder.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace agspeed::comm {

ScheduleBuilder::ScheduleBuilder(const ScheduleRequest& request, uint32_t numChunks) {
  schedule_.rank = request.rank;
  schedule_.numRanks = request.numRanks;
  schedule_.numChunks = numChunks;
  schedule_.mayBeInPlace = request.collective != Collective::kAllToAll;
}

Region ScheduleBuilder::scratch(const Region& like) {
  Slot slot{like, false};
  if (like.place == Place::kScratch) {
    slot.like.place = schedule_.slots[like.slot].like.place;
    slot.like.slot = 0;
  }
  schedule_.slots.push_back(slot);
  return {Place::kScratch, static_cast<uint32_t>(schedule_.slots.size() - 1), like.first, like.count};
}

Region ScheduleBuilder::wideScratch(const Region& like) {
  const Region region = scratch(like);
  schedule_.slots.back().isWide = true;
  return region;
}

Step& ScheduleBuilder::add(StepKind kind, const Region& region) {
  AG_CHECK(region.first + region.count <= schedule_.numChunks, "a region ends behind the last chunk");
  Step step;
  step.kind = kind;
  step.region = region;
  schedule_.steps.push_back(std::move(step));
  return schedule_.steps.back();
}

void ScheduleBuilder::send(int peer, const Region& region, uint32_t tag) {
  Step& step = add(StepKind::kSend, region);
  step.peer = peer;
  step.tag = tag;
}

void ScheduleBuilder::receive(int peer, const Region& region, uint32_t tag) {
  send(peer, region, tag);
  schedule_.steps.back().kind = StepKind::kReceive;
}

void ScheduleBuilder::copy(const Region& target, const Region& source) {
  add(StepKind::kCopy, target).sources = {source};
}

void ScheduleBuilder::reducePartly(const Region& target, std::vector<Region> sources) {
  add(StepKind::kReduce, target).sources = std::move(sources);
}

void ScheduleBuilder::reduceFinally(const Region& target, std::vector<Region> sources) {
  reducePartly(target, std::move(sources));
  schedule_.steps.back().isResult = true;
}

Schedule ScheduleBuilder::build() && {
  // Only dependencies that do not follow from others are kept: comesBefore[i] are all steps before step i.
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

Region part(const Region& region, uint32_t first, uint32_t count) {
  Region result = region;
  result.first = first;
  result.count = count;
  return result;
}

}  // namespace agspeed::comm
