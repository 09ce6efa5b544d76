// SPDX-License-Identifier: Apache-2.0
#include "comm/collective/execution.h"
#include "runtime/base/format.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

namespace agspeed::comm {

namespace {

/// Shorter computations run at once: queueing them costs more than it lets bytes move earlier.
constexpr size_t kInlineBytes = 16 * 1024;
constexpr size_t kCacheLine = 64;
constexpr uint64_t kFailureToken = UINT64_MAX;
constexpr int kAtOnce = INT32_MIN;

size_t alignUp(size_t value) { return (value + kCacheLine - 1) / kCacheLine * kCacheLine; }

}  // namespace

PreparedSchedule::PreparedSchedule(Schedule from) : schedule(std::move(from)), dependents(schedule.steps.size()) {
  for (uint32_t i = 0; i < schedule.steps.size(); ++i) {
    numDependencies.push_back(static_cast<uint32_t>(schedule.steps[i].dependencies.size()));
    for (const uint32_t dependency : schedule.steps[i].dependencies) dependents[dependency].push_back(i);
  }
}

Execution::Execution(const PreparedSchedule& prepared, Engine& engine, ExecutionListener& listener)
    : prepared_(prepared), engine_(engine), listener_(listener) {}

void Execution::start(const ExecutionRequest& request) {
  request_ = request;
  const Schedule& schedule = prepared_.schedule;
  elementBytes_ = sizeInBytes(request.call->dtype);
  wideBytes_ = sizeInBytes(accumulatorOf(request.call->dtype));
  layout_ = ChunkLayout(*request.call, schedule.rank, schedule.numChunks, request.segmentElements, request.shares);
  failure_ = {};
  const uint32_t numLanes = std::min(std::max(request.window, 1u), layout_.numSegments());
  while (lanes_.size() < numLanes) {
    Lane& lane = lanes_.emplace_back();
    lane.input.resize(schedule.numChunks);
    lane.output.resize(schedule.numChunks);
    lane.slotOffsets.resize(schedule.slots.size());
    lane.transfers = std::vector<StepTransfer>(schedule.steps.size());
  }
  done_.resize(lanes_.size() * schedule.steps.size());
  operands_.reserve(static_cast<size_t>(schedule.numRanks));
  nextSegment_ = 0;
  numOpenLanes_ = numLanes;
  isDraining_ = true;
  for (uint32_t lane = 0; lane < numLanes; ++lane) openLane(lane, nextSegment_++);
  isDraining_ = false;
  drain();
}

void Execution::openLane(uint32_t index, uint32_t segment) {
  Lane& lane = lanes_[index];
  lane.segment = segment;
  lane.numStepsLeft = static_cast<uint32_t>(prepared_.schedule.steps.size());
  lane.numWaiting = prepared_.numDependencies;
  layout_.locate(segment, lane.input, lane.output);
  layOutScratch(lane);
  for (uint32_t step = 0; step < prepared_.schedule.steps.size(); ++step) {
    if (prepared_.numDependencies[step] == 0) launch(index, step);
  }
  if (lane.numStepsLeft == 0) --numOpenLanes_;  // a schedule without steps
}

void Execution::layOutScratch(Lane& lane) {
  size_t size = 0;
  for (size_t i = 0; i < prepared_.schedule.slots.size(); ++i) {
    const Slot& slot = prepared_.schedule.slots[i];
    lane.slotOffsets[i] = size;
    size_t numElements = 0;
    for (const Chunk& chunk : chunksOf(lane, slot.like)) numElements += chunk.numElements;
    size = alignUp(size + numElements * (slot.isWide ? wideBytes_ : elementBytes_));
  }
  if (size <= lane.scratchBytes) return;
  lane.scratch = std::make_unique_for_overwrite<std::byte[]>(size);
  lane.scratchBytes = size;
}

std::span<const Chunk> Execution::chunksOf(const Lane& lane, const ChunkRange& range) const {
  const ChunkRange& like = range.place == BufferKind::kScratch ? prepared_.schedule.slots[range.slot].like : range;
  const auto& chunks = like.place == BufferKind::kInput ? lane.input : lane.output;
  return std::span(chunks).subspan(range.first, range.count);
}

Execution::View Execution::view(const Lane& lane, const ChunkRange& range) const {
  View result{nullptr, 0, prepared_.schedule.isWide(range)};
  for (const Chunk& chunk : chunksOf(lane, range)) {
    if (result.data == nullptr || result.numElements == 0) result.data = chunk.data;
    result.numElements += chunk.numElements;
  }
  if (range.place != BufferKind::kScratch) return result;
  ChunkRange before = prepared_.schedule.slots[range.slot].like;
  before.count = range.first - before.first;
  size_t numBefore = 0;
  for (const Chunk& chunk : chunksOf(lane, before)) numBefore += chunk.numElements;
  result.data =
      lane.scratch.get() + lane.slotOffsets[range.slot] + numBefore * (result.isWide ? wideBytes_ : elementBytes_);
  return result;
}

void Execution::launch(uint32_t index, uint32_t stepIndex) {
  Lane& lane = lanes_[index];
  const Step& step = prepared_.schedule.steps[stepIndex];
  const View bytes = view(lane, step.range);
  if (bytes.numElements == 0) return complete(index, stepIndex);
  if (step.kind == StepKind::kReduce || step.kind == StepKind::kCopy) {
    if (sizeOf(bytes) * step.sources.size() > kInlineBytes) {
      return engine_.addWork(*this, uint64_t{index} << 32 | stepIndex, request_.priority);
    }
    compute(lane, step);
    return complete(index, stepIndex);
  }
  StepTransfer& transfer = lane.transfers[stepIndex];
  transfer.owner = this;
  transfer.lane = index;
  transfer.step = stepIndex;
  transfer.rank = step.peer;
  transfer.isPending = true;
  transfer.peer = request_.members[static_cast<size_t>(step.peer)];
  transfer.id = {request_.communicator, lane.segment * prepared_.schedule.tagLimit() + step.tag, request_.sequence};
  transfer.bytes = {bytes.data, sizeOf(bytes)};
  if (step.kind == StepKind::kReceive) return engine_.messenger().receive(transfer);
  transfer.numFollowing = uint64_t{layout_.numSegments() - nextSegment_} * transfer.bytes.size();
  engine_.messenger().send(transfer);
}

void Execution::compute(const Lane& lane, const Step& step) {
  const View target = view(lane, step.range);
  if (step.kind == StepKind::kCopy) {
    const View source = view(lane, step.sources[0]);
    if (source.data != target.data) std::memcpy(target.data, source.data, sizeOf(target));
    return;
  }
  operands_.clear();
  for (const ChunkRange& range : step.sources) {
    const View source = view(lane, range);
    operands_.push_back({source.data, source.isWide});
  }
  const bool divides = step.isResult && request_.call->op == ReduceOp::kAverage;
  reduce(target.data, target.isWide, operands_, target.numElements,
         {request_.call->dtype, request_.call->op, divides ? prepared_.schedule.numRanks : 1});
}

void Execution::work(uint64_t token) {
  if (token == kFailureToken) return listener_.executionFailed(*this, failedRank_, failure_);
  const auto lane = static_cast<uint32_t>(token >> 32), step = static_cast<uint32_t>(token);
  compute(lanes_[lane], prepared_.schedule.steps[step]);
  complete(lane, step);
}

void Execution::transferFinished(StepTransfer& transfer, const Status& status) {
  if (!transfer.isPending) return;  // being cancelled
  transfer.isPending = false;
  if (status) return complete(transfer.lane, transfer.step);
  // The listener will cancel transfers, which the messenger does not allow from here.
  if (!failure_) return;
  engine_.addWork(*this, kFailureToken, kAtOnce);
  failure_ = status;
  failedRank_ = transfer.rank;
}

void Execution::complete(uint32_t lane, uint32_t step) {
  done_[(firstDone_ + numDone_++) % done_.size()] = {lane, step};
  if (!isDraining_) drain();
}

/// Starts what waited for finished steps. A loop instead of a recursion: a step may finish while it is started.
void Execution::drain() {
  isDraining_ = true;
  while (numDone_ > 0) {
    const auto [lane, step] = done_[firstDone_];
    firstDone_ = (firstDone_ + 1) % done_.size();
    --numDone_;
    advance(lane, step);
  }
  isDraining_ = false;
  if (numOpenLanes_ == 0) listener_.executionEnded(*this);  // last: it may start this execution anew
}

void Execution::advance(uint32_t index, uint32_t step) {
  Lane& lane = lanes_[index];
  --lane.numStepsLeft;
  for (const uint32_t dependent : prepared_.dependents[step]) {
    if (--lane.numWaiting[dependent] == 0) launch(index, dependent);
  }
  if (lane.numStepsLeft > 0) return;
  if (nextSegment_ < layout_.numSegments()) return openLane(index, nextSegment_++);
  --numOpenLanes_;
}

void Execution::cancel(const Status& reason) {
  engine_.removeWork(*this);
  for (Lane& lane : lanes_) {
    for (StepTransfer& transfer : lane.transfers) {
      if (std::exchange(transfer.isPending, false)) engine_.messenger().cancel(transfer, reason);
    }
  }
  firstDone_ = numDone_ = 0;
}

std::vector<int> Execution::awaitedRanks() const {
  std::set<int> ranks;
  for (const Lane& lane : lanes_) {
    for (const StepTransfer& transfer : lane.transfers) {
      if (transfer.isPending) ranks.insert(transfer.rank);
    }
  }
  return {ranks.begin(), ranks.end()};
}

std::string Execution::describe() const {
  return formatText("{}, operation {} of group '{}'", toString(comm::describe(*request_.call)), request_.number,
                    request_.group);
}

std::string Execution::progress() const {
  std::string text = formatText("segment {} of {}", nextSegment_ - numOpenLanes_ + 1, layout_.numSegments());
  const auto ranks = awaitedRanks();
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += i == 0 ? (ranks.size() == 1 ? ", waiting for rank " : ", waiting for ranks ")
                   : (i + 1 == ranks.size() ? " and " : ", ");
    text += std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace agspeed::comm
