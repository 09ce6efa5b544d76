// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/execution.h"
#include "runtime/base/format.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

namespace agspeed::comm::engine {

namespace {

/// Computations on at most this many bytes run immediately. If they were queued, the queue would cost more time than
/// the overlap with transfers would save.
constexpr size_t kInlineBytes = 16 * 1024;
constexpr size_t kCacheLine = 64;
constexpr uint64_t kFailureToken = UINT64_MAX;
constexpr int kAtOnce = INT32_MIN;  ///< the priority of work that runs before all other work

bool isTransfer(const schedule::Step& step) {
  return step.kind == schedule::StepKind::kSend || step.kind == schedule::StepKind::kReceive;
}

size_t alignUp(size_t value) { return (value + kCacheLine - 1) / kCacheLine * kCacheLine; }

}  // namespace

PreparedSchedule::PreparedSchedule(schedule::Schedule from)
    : schedule(std::move(from)), dependents(schedule.steps.size()) {
  std::vector<uint32_t> messages;  // the first send of each message
  for (uint32_t i = 0; i < schedule.steps.size(); ++i) {
    const schedule::Step& step = schedule.steps[i];
    numDependencies.push_back(static_cast<uint32_t>(step.dependencies.size()));
    for (const uint32_t dependency : step.dependencies) dependents[dependency].push_back(i);
    firstOfMessage.push_back(i);
    if (step.kind != schedule::StepKind::kSend) continue;
    // Two sends of one range send the same values if they have the same dependencies. If a step wrote to the range
    // between them, the second send would depend on this step.
    const auto same = std::find_if(messages.begin(), messages.end(), [&](uint32_t other) {
      const schedule::Step& before = schedule.steps[other];
      return before.range == step.range && before.dependencies == step.dependencies;
    });
    if (same != messages.end()) {
      firstOfMessage.back() = *same;
    } else {
      messages.push_back(i);
    }
  }
}

Execution::Execution(const PreparedSchedule& prepared, Engine& engine, ExecutionListener& listener)
    : prepared_(prepared), engine_(engine), listener_(listener) {}

void Execution::start(const ExecutionRequest& request) {
  request_ = request;
  const schedule::Schedule& schedule = prepared_.schedule;
  elementBytes_ = sizeInBytes(request.call->dtype);
  wideBytes_ = sizeInBytes(reduce::accumulatorOf(request.call->dtype));
  layout_ = ChunkLayout(*request.call, schedule.rank, schedule.numChunks, request.segmentElements, request.shares);
  failure_.reset();
  const uint32_t numSlots = std::min(std::max(request.window, 1u), layout_.numSegments());
  while (slots_.size() < numSlots) {
    SegmentSlot& slot = slots_.emplace_back();
    slot.input.resize(schedule.numChunks);
    slot.output.resize(schedule.numChunks);
    slot.scratchOffsets.resize(schedule.scratch.size());
    slot.transfers = std::vector<StepTransfer>(schedule.steps.size());
    slot.codes.resize(schedule.steps.size());
  }
  done_.resize(slots_.size() * schedule.steps.size());
  operands_.reserve(static_cast<size_t>(schedule.numRanks));
  nextSegment_ = 0;
  numOpenSlots_ = numSlots;
  isDraining_ = true;
  for (uint32_t slot = 0; slot < numSlots; ++slot) openSlot(slot, nextSegment_++);
  isDraining_ = false;
  drain();
}

void Execution::openSlot(uint32_t index, uint32_t segment) {
  SegmentSlot& slot = slots_[index];
  slot.segment = segment;
  slot.numStepsLeft = static_cast<uint32_t>(prepared_.schedule.steps.size());
  slot.numWaiting = prepared_.numDependencies;
  layout_.locate(segment, slot.input, slot.output);
  layOutScratch(slot);
  for (Code& code : slot.codes) code.numBytes.reset();
  for (uint32_t step = 0; step < prepared_.schedule.steps.size(); ++step) {
    if (prepared_.numDependencies[step] == 0) launch(index, step);
  }
  if (slot.numStepsLeft == 0) --numOpenSlots_;  // the schedule has no steps
}

void Execution::layOutScratch(SegmentSlot& slot) {
  size_t size = 0;
  for (size_t i = 0; i < prepared_.schedule.scratch.size(); ++i) {
    const schedule::ScratchBuffer& buffer = prepared_.schedule.scratch[i];
    slot.scratchOffsets[i] = size;
    size_t numElements = 0;
    for (const Chunk& chunk : chunksOf(slot, buffer.like)) numElements += chunk.numElements;
    size = alignUp(size + numElements * (buffer.isWide ? wideBytes_ : elementBytes_));
  }
  if (size <= slot.scratchBytes) return;
  slot.scratch = std::make_unique_for_overwrite<std::byte[]>(size);
  slot.scratchBytes = size;
}

std::span<const Chunk> Execution::chunksOf(const SegmentSlot& slot, const schedule::ChunkRange& range) const {
  const schedule::ChunkRange& like =
      range.buffer == schedule::BufferKind::kScratch ? prepared_.schedule.scratch[range.scratch].like : range;
  const auto& chunks = like.buffer == schedule::BufferKind::kInput ? slot.input : slot.output;
  return std::span(chunks).subspan(range.first, range.count);
}

Execution::View Execution::view(const SegmentSlot& slot, const schedule::ChunkRange& range) const {
  View result{nullptr, 0, prepared_.schedule.isWide(range)};
  for (const Chunk& chunk : chunksOf(slot, range)) {
    if (result.data == nullptr || result.numElements == 0) result.data = chunk.data;
    result.numElements += chunk.numElements;
  }
  if (range.buffer != schedule::BufferKind::kScratch) return result;
  schedule::ChunkRange before = prepared_.schedule.scratch[range.scratch].like;
  before.count = range.first - before.first;
  size_t numBefore = 0;
  for (const Chunk& chunk : chunksOf(slot, before)) numBefore += chunk.numElements;
  result.data = slot.scratch.get() + slot.scratchOffsets[range.scratch] +
                numBefore * (result.isWide ? wideBytes_ : elementBytes_);
  return result;
}

void Execution::launch(uint32_t index, uint32_t stepIndex) {
  SegmentSlot& slot = slots_[index];
  const schedule::Step& step = prepared_.schedule.steps[stepIndex];
  const View bytes = view(slot, step.range);
  if (bytes.numElements == 0) return complete(index, stepIndex);
  if (step.kind == schedule::StepKind::kReduce || step.kind == schedule::StepKind::kCopy) {
    if (sizeOf(bytes) * step.sources.size() > kInlineBytes) {
      return engine_.addWork(*this, uint64_t{index} << 32 | stepIndex, request_.priority);
    }
    compute(slot, step);
    return complete(index, stepIndex);
  }
  StepTransfer& transfer = slot.transfers[stepIndex];
  transfer.owner = this;
  transfer.slot = index;
  transfer.step = stepIndex;
  transfer.rank = step.peer;
  transfer.peer = request_.members[static_cast<size_t>(step.peer)];
  transfer.id = {request_.communicator, slot.segment * prepared_.schedule.tagLimit() + step.tag, request_.sequence};
  transfer.bytes = {bytes.data, sizeOf(bytes)};
  transfer.room = WireCoder::isCodable(typeOf(step.range), transfer.bytes.size()) ? transfer.bytes.size() : 0;
  if (step.kind == schedule::StepKind::kReceive) {
    transfer.state = StepTransfer::State::kMoving;
    return engine_.messenger().receive(transfer);
  }
  transfer.numFollowing = uint64_t{layout_.numSegments() - nextSegment_} * transfer.bytes.size();
  if (transfer.room == 0 || !engine_.coder().isWanted(transfer.peer, transfer.bytes, typeOf(step.range))) {
    return send(transfer);
  }
  transfer.state = StepTransfer::State::kCoding;
  engine_.addWork(*this, uint64_t{index} << 32 | stepIndex, request_.priority);
}

void Execution::send(StepTransfer& transfer) {
  transfer.state = StepTransfer::State::kMoving;
  engine_.messenger().send(transfer);
}

void Execution::encode(SegmentSlot& slot, StepTransfer& transfer) {
  Code& code = slot.codes[prepared_.firstOfMessage[transfer.step]];
  if (!code.numBytes) {
    if (code.memory.size() < transfer.bytes.size()) code.memory.resize(transfer.bytes.size());
    const auto target = std::span(code.memory).first(transfer.bytes.size());
    code.numBytes =
        engine_.coder().encode(target, transfer.bytes, typeOf(prepared_.schedule.steps[transfer.step].range));
  }
  if (*code.numBytes > 0) transfer.bytes = std::span(code.memory).first(*code.numBytes);
}

void Execution::decode(StepTransfer& transfer) {
  received_.assign(transfer.bytes.begin(), transfer.bytes.begin() + static_cast<ptrdiff_t>(transfer.numReceived));
  const DType dtype = typeOf(prepared_.schedule.steps[transfer.step].range);
  const Status status = engine_.coder().decode(transfer.bytes, received_, dtype);
  if (status.isOk()) return complete(transfer.slot, transfer.step);
  if (failure_) return;
  failure_ = status.withContext(formatText("a message of rank {} for {} cannot be used", transfer.rank, describe()));
  failedRank_ = transfer.rank;
  listener_.executionFailed(*this, failedRank_, *failure_);
}

DType Execution::typeOf(const schedule::ChunkRange& range) const {
  return prepared_.schedule.isWide(range) ? reduce::accumulatorOf(request_.call->dtype) : request_.call->dtype;
}

void Execution::compute(const SegmentSlot& slot, const schedule::Step& step) {
  const View target = view(slot, step.range);
  if (step.kind == schedule::StepKind::kCopy) {
    const View source = view(slot, step.sources[0]);
    if (source.data != target.data) std::memcpy(target.data, source.data, sizeOf(target));
    return;
  }
  operands_.clear();
  for (const schedule::ChunkRange& range : step.sources) {
    const View source = view(slot, range);
    operands_.push_back({source.data, source.isWide});
  }
  const bool divides = step.isResult && request_.call->op == reduce::ReduceOp::kAverage;
  reduce::reduce(target.data, target.isWide, operands_, target.numElements,
                 {request_.call->dtype, request_.call->op, divides ? prepared_.schedule.numRanks : 1});
}

void Execution::work(uint64_t token) {
  if (token == kFailureToken) return listener_.executionFailed(*this, failedRank_, *failure_);
  const auto index = static_cast<uint32_t>(token >> 32), stepIndex = static_cast<uint32_t>(token);
  SegmentSlot& slot = slots_[index];
  const schedule::Step& step = prepared_.schedule.steps[stepIndex];
  StepTransfer& transfer = slot.transfers[stepIndex];
  if (step.kind == schedule::StepKind::kSend) {
    encode(slot, transfer);
    return send(transfer);
  }
  transfer.state = StepTransfer::State::kIdle;
  if (step.kind == schedule::StepKind::kReceive) return decode(transfer);
  compute(slot, step);
  complete(index, stepIndex);
}

void Execution::transferFinished(StepTransfer& transfer, const Status& status) {
  if (transfer.state != StepTransfer::State::kMoving) return;  // the transfer is being cancelled
  transfer.state = StepTransfer::State::kIdle;
  if (status.isOk()) {
    const bool isReceive = prepared_.schedule.steps[transfer.step].kind == schedule::StepKind::kReceive;
    const bool isCode = isReceive && transfer.room > 0 && transfer.numReceived < transfer.bytes.size();
    if (!isCode) return complete(transfer.slot, transfer.step);
    transfer.state = StepTransfer::State::kCoding;
    return engine_.addWork(*this, uint64_t{transfer.slot} << 32 | transfer.step, request_.priority);
  }
  // Call the listener later. It cancels transfers, which the messenger does not allow within finished().
  if (failure_) return;
  engine_.addWork(*this, kFailureToken, kAtOnce);
  failure_ = status;
  failedRank_ = transfer.rank;
}

void Execution::complete(uint32_t slot, uint32_t step) {
  done_[(firstDone_ + numDone_++) % done_.size()] = {slot, step};
  if (!isDraining_) drain();
}

void Execution::drain() {
  // This is a loop and not a recursion, because a step may finish while it is started.
  isDraining_ = true;
  while (numDone_ > 0) {
    const auto [slot, step] = done_[firstDone_];
    firstDone_ = (firstDone_ + 1) % done_.size();
    --numDone_;
    advance(slot, step);
  }
  isDraining_ = false;
  if (numOpenSlots_ == 0) listener_.executionEnded(*this);  // last, because the listener may start this execution again
}

void Execution::advance(uint32_t index, uint32_t step) {
  SegmentSlot& slot = slots_[index];
  --slot.numStepsLeft;
  for (const uint32_t dependent : prepared_.dependents[step]) {
    if (--slot.numWaiting[dependent] == 0) launch(index, dependent);
  }
  if (slot.numStepsLeft > 0) return;
  if (nextSegment_ < layout_.numSegments()) return openSlot(index, nextSegment_++);
  --numOpenSlots_;
}

void Execution::cancel(const Status& reason) {
  engine_.removeWork(*this);
  for (SegmentSlot& slot : slots_) {
    for (StepTransfer& transfer : slot.transfers) {
      const auto before = std::exchange(transfer.state, StepTransfer::State::kIdle);
      if (before == StepTransfer::State::kMoving) engine_.messenger().cancel(transfer, reason);
    }
  }
  firstDone_ = numDone_ = 0;
}

std::vector<int> Execution::awaitedRanks() const {
  std::set<int> ranks;
  for (const SegmentSlot& slot : slots_) {
    for (const StepTransfer& transfer : slot.transfers) {
      if (transfer.state == StepTransfer::State::kMoving) ranks.insert(transfer.rank);
    }
  }
  return {ranks.begin(), ranks.end()};
}

Execution::Traffic Execution::traffic() const {
  const schedule::Schedule& schedule = prepared_.schedule;
  Traffic sum;
  SegmentSlot layout;
  layout.input.resize(schedule.numChunks);
  layout.output.resize(schedule.numChunks);
  for (uint32_t segment = 0; segment < layout_.numSegments(); ++segment) {
    layout_.locate(segment, layout.input, layout.output);
    uint64_t numBytes = 0;
    for (const schedule::Step& step : schedule.steps) numBytes += isTransfer(step) ? bytesOf(layout, step.range) : 0;
    sum.numBytes += numBytes;
    const auto open = std::find_if(slots_.begin(), slots_.end(), [&](const SegmentSlot& slot) {
      return slot.numStepsLeft > 0 && slot.segment == segment;
    });
    if (segment < nextSegment_) sum.numMoved += open == slots_.end() ? numBytes : numMoved(*open);
  }
  return sum;
}

uint64_t Execution::bytesOf(const SegmentSlot& slot, const schedule::ChunkRange& range) const {
  uint64_t numElements = 0;
  for (const Chunk& chunk : chunksOf(slot, range)) numElements += chunk.numElements;
  return numElements * (prepared_.schedule.isWide(range) ? wideBytes_ : elementBytes_);
}

uint64_t Execution::numMoved(const SegmentSlot& slot) const {
  uint64_t sum = 0;
  for (size_t i = 0; i < prepared_.schedule.steps.size(); ++i) {
    const schedule::Step& step = prepared_.schedule.steps[i];
    if (!isTransfer(step) || slot.numWaiting[i] > 0) continue;
    const StepTransfer& transfer = slot.transfers[i];
    switch (transfer.state) {
      case StepTransfer::State::kIdle: sum += bytesOf(slot, step.range); break;
      case StepTransfer::State::kCoding: break;
      case StepTransfer::State::kMoving: sum += engine_.messenger().numBytesMoved(transfer); break;
    }
  }
  return sum;
}

std::string Execution::describe() const {
  return formatText("{}, operation {} of group '{}'", toString(signatureOf(*request_.call)), request_.number,
                    request_.group);
}

std::string Execution::progress() const {
  std::string text = formatText("segment {} of {}", nextSegment_ - numOpenSlots_ + 1, layout_.numSegments());
  const auto ranks = awaitedRanks();
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += i == 0 ? (ranks.size() == 1 ? ", waiting for rank " : ", waiting for ranks ")
                   : (i + 1 == ranks.size() ? " and " : ", ");
    text += std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace agspeed::comm::engine
