// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/multirail/ack_tracker.h"

#include <algorithm>

namespace agspeed::comm::multirail {
namespace {

/// An acknowledgement is due after max(kMinBytesDue, kFramesDue * length of the longest frame) payload bytes. The
/// second term matters on fast rails. They carry long frames, and would otherwise need an acknowledgement for each
/// frame.
constexpr uint64_t kFramesDue = 4;

}  // namespace

bool AckTracker::begin(int rail, const wire::FrameHeader& header) {
  placementOf(rail) = {};
  return isWanted(header.number) && std::none_of(placements_.begin(), placements_.end(), [&](const Placement& other) {
           return other.number == header.number && other.attempt > header.attempt;
         });
}

std::optional<AckTracker::Copy> AckTracker::takeEarlierCopy(const wire::FrameHeader& header) {
  // Invariant: at most one rail places each number.
  for (Placement& placement : placements_) {
    if (placement.number != header.number) continue;
    const Copy copy = {static_cast<int>(&placement - placements_.data()), placement.target};
    placement = {};
    return copy;
  }
  return std::nullopt;
}

void AckTracker::place(int rail, const wire::FrameHeader& header, ByteView target) {
  placementOf(rail) = {header.number, header.attempt, target};
}

bool AckTracker::end(int rail, const wire::FrameHeader& header) {
  const uint64_t placed = placementOf(rail).number;
  placementOf(rail) = {};
  return header.length == 0 || placed == header.number;
}

void AckTracker::add(const wire::FrameHeader& header) {
  received_.add(header.number);
  bytesDue_ += header.length;
  mostDue_ = std::max(mostDue_, kFramesDue * header.length);
  if (header.total >= wire::kZeroCopyBytes && header.offset + header.length == header.total) {
    lastDue_ = std::max(lastDue_, header.number);
    if (firstDue_ == 0) firstDue_ = header.number;
  }
}

ByteView AckTracker::cancel(int rail, ByteView target) {
  Placement& placement = placementOf(rail);
  if (!transport::overlaps(placement.target, target)) return {};
  const ByteView cancelled = placement.target;
  placement.target = {};
  return cancelled;
}

bool AckTracker::isDue() const {
  const bool isSenderWaiting = firstDue_ != 0 && received_.next() > firstDue_;
  return hasUnsentAck() && (isSenderWaiting || bytesDue_ >= mostDue_);
}

void AckTracker::duplicateSeen(uint64_t number) {
  acknowledged_ = std::min(acknowledged_, number);
  bytesDue_ += mostDue_;
}

void AckTracker::ackSent() {
  acknowledged_ = received_.next();
  firstDue_ = lastDue_ >= acknowledged_ ? lastDue_ : 0;
  bytesDue_ = 0;
  mostDue_ = kMinBytesDue;
}

void AckTracker::ackMayBeLost() {
  acknowledged_ = 1;
  firstDue_ = lastDue_;
}

}  // namespace agspeed::comm::multirail
