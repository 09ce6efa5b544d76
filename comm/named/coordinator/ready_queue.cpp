// SPDX-License-Identifier: Apache-2.0
#include "comm/named/coordinator/ready_queue.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

namespace agspeed::comm::coordinator {
namespace {

/// The largest number of responses that move data at the same time. Responses of one large tensor have other limits
/// (below). Further operations wait, and are fused meanwhile. kMaxRunningFull applies if the ready operations fill a
/// buffer. It is higher than kMaxRunning, because waiting would not make a full buffer larger. Instead, one buffer can
/// be packed or unpacked while another one moves.
constexpr size_t kMaxRunning = 2, kMaxRunningFull = 4;
/// Several large tensors run at a time, so that the network is not idle until the coordinator responds again. Another
/// tensor starts if fewer than kMaxRunningLarge are running, and if the running ones have less than
/// kMaxRunningLargeBytes in total. The size of the new tensor does not matter.
constexpr size_t kMaxRunningLarge = 16, kMaxRunningLargeBytes = size_t{16} << 20;
/// The longest time for which FusionOrder::kSize holds a buffer that is not full.
constexpr std::chrono::milliseconds kMaxHold{2};

/// Returns the number of bytes that numBytes() counts for an operation.
size_t weightOf(const Entry& entry) { return std::max<size_t>(1, entry.numBytes); }

bool runsEarlier(const EntryHandle& left, const EntryHandle& right) { return left->place < right->place; }

}  // namespace

void RunningResponses::began(const named::Request& first) {
  const size_t numBytes = bytesOf(first);
  if (!runsAlone(first, numBytes)) {
    ++numOther;
    return;
  }
  ++numLarge;
  largeBytes += numBytes;
}

void RunningResponses::ended(const named::Request& first) {
  const size_t numBytes = bytesOf(first);
  if (!runsAlone(first, numBytes)) {
    --numOther;
    return;
  }
  --numLarge;
  largeBytes -= numBytes;
}

bool ReadyQueue::runsWhole(size_t numBytes) const {
  const bool isInOrder = plan_.order == FusionOrder::kTime || plan_.order == FusionOrder::kSize;
  return isInOrder && numBytes <= plan_.fusionBytes;
}

bool ReadyQueue::isResponseDue(const RunningResponses& running, bool areAwaited, io::Clock::time_point now) {
  if (entries_.empty()) return false;
  const bool isFull = numBytes_ >= plan_.fusionBytes;
  const bool isAlone = entries_.front()->isLargeTensor();
  const bool isEnough = isAlone ? running.numLarge >= kMaxRunningLarge || running.largeBytes >= kMaxRunningLargeBytes
                                : running.numOther >= (isFull ? kMaxRunningFull : kMaxRunning);
  if (isEnough && plan_.fusionBytes > 0) return false;
  // FusionOrder::kSize waits for more operations only if some operations still wait for ranks. Otherwise the buffer
  // cannot become fuller, and the callers may be waiting for this response.
  const bool isHeld = plan_.order == FusionOrder::kSize && !isFull && !isAlone && areAwaited;
  if (!isHeld) {
    heldUntil_ = io::Clock::time_point::max();
    return true;
  }
  if (heldUntil_ == io::Clock::time_point::max()) heldUntil_ = now + kMaxHold;
  if (now < heldUntil_) return false;
  heldUntil_ = io::Clock::time_point::max();
  return true;
}

void ReadyQueue::push(EntryHandle entry, const IdCache& ids) {
  entry->order = ++numPushed_;
  place(*entry, ids);
  numBytes_ += weightOf(*entry);
  entries_.insert(std::upper_bound(entries_.begin(), entries_.end(), entry, runsEarlier), std::move(entry));
}

EntryHandle ReadyQueue::pop() {
  EntryHandle entry = std::move(entries_.front());
  entries_.pop_front();
  numBytes_ -= weightOf(*entry);
  return entry;
}

std::vector<EntryHandle> ReadyQueue::popFitting(size_t room, const std::function<bool(const Entry&)>& isWanted) {
  std::vector<EntryHandle> taken;
  std::deque<EntryHandle> left;
  while (!entries_.empty() && room > 0) {
    EntryHandle entry = std::move(entries_.front());
    entries_.pop_front();
    if (entry->numBytes > room || entry->isLargeTensor() || !isWanted(*entry)) {
      left.push_back(std::move(entry));
      continue;
    }
    room -= entry->numBytes;
    numBytes_ -= weightOf(*entry);
    taken.push_back(std::move(entry));
  }
  entries_.insert(entries_.begin(), std::make_move_iterator(left.begin()), std::make_move_iterator(left.end()));
  return taken;
}

void ReadyQueue::setPlan(FusionPlan plan, const IdCache& ids,
                         const std::function<std::vector<EntryHandle>(const Batch&)>& split) {
  plan_ = plan;
  for (EntryHandle& entry : std::exchange(entries_, {})) {
    if (entry->batch == nullptr || runsWhole(entry->numBytes)) {
      entries_.push_back(std::move(entry));
      continue;
    }
    for (EntryHandle& part : split(*entry->batch)) {
      part->order = entry->order;
      entries_.push_back(std::move(part));
    }
  }
  for (const EntryHandle& entry : entries_) place(*entry, ids);
  std::stable_sort(entries_.begin(), entries_.end(), runsEarlier);
}

void ReadyQueue::forgetId(uint32_t id) {
  for (const EntryHandle& entry : entries_) {
    if (entry->id == id) entry->id = 0;
  }
}

void ReadyQueue::place(Entry& entry, const IdCache& ids) const {
  const named::Request& first = firstOf(entry.requests);
  entry.numBytes = entry.batch != nullptr ? entry.batch->numBytes : bytesOf(first);
  switch (plan_.order) {
    case FusionOrder::kTime:
    case FusionOrder::kSize: entry.place = static_cast<int64_t>(entry.order); return;
    case FusionOrder::kPriority: entry.place = -int64_t{first.priority}; return;
    case FusionOrder::kModel: {
      const uint32_t id = entry.id != 0 ? entry.id : ids.find(first.name);
      entry.place = id == 0 ? std::numeric_limits<int64_t>::max() : int64_t{id};
      return;
    }
  }
}

}  // namespace agspeed::comm::coordinator
