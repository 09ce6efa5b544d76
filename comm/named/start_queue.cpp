// SPDX-License-Identifier: Apache-2.0
#include "comm/named/start_queue.h"

#include <algorithm>
#include <utility>

namespace agspeed::comm::named {
namespace {

constexpr const char* kDuplicateName =
    "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor that is currently "
    "being processed. If you want to request another tensor, use a different tensor name.";

Status duplicate(const std::string& name, int rank) {
  return invalidArgument("{} The name is '{}', at rank {}.", kDuplicateName, name, rank);
}

}  // namespace

StartQueue::Added StartQueue::add(std::span<const NamedHandle> operations, int rank) {
  Added added;
  const std::lock_guard lock(mutex_);
  const size_t numBefore = added_.size();
  for (const NamedHandle& operation : operations) {
    if (Status reason = claimName(*operation, rank); !reason.isOk()) {
      added.refused.push_back({operation, std::move(reason)});
    } else {
      operation->clearResults();
      added_.push_back(operation);
    }
  }
  if (added_.size() == numBefore) return added;
  const OwnName& last = *added_.back()->name();
  const bool isExpected = numBefore > 0 && added_[numBefore - 1]->name()->follower == added_[numBefore]->name().get();
  if (isExpected && last.follower != nullptr) return added;  // the queue knows that the burst continues
  const auto now = io::Clock::now();
  if (!isExpected) learnFollower(numBefore, now);
  added.isFirst = numBefore == 0;
  if (added.isFirst) firstAdd_ = now;
  lastAdd_ = now;
  isAwaitingFollower_ = last.follower != nullptr;
  if (isAwaitingFollower_) {
    isKickDeferred_ = isKickDeferred_ || added.isFirst;
    added.takeBy = now + kBurst;
    return added;
  }
  if (isKickDeferred_ && now - firstAdd_ > kFollow * added_.size()) {
    for (const NamedHandle& each : added_) each->name()->follower = nullptr;  // the starts were too slow for a burst
  }
  added.isKickDue = std::exchange(isKickDeferred_, false) || now - lastKick_ >= kGather;
  if (added.isKickDue) lastKick_ = now;
  return added;
}

void StartQueue::learnFollower(size_t numBefore, io::Clock::time_point now) {
  const OwnNameHandle& before = numBefore > 0 ? added_[numBefore - 1]->name() : lastName_;
  if (before == nullptr) return;
  const bool hasFollowed = (numBefore > 0 && isAwaitingFollower_) || now - lastAdd_ < kFollow;
  before->follower = hasFollowed ? added_[numBefore]->name().get() : nullptr;
}

void StartQueue::kicked() {
  const std::lock_guard lock(mutex_);
  lastAdd_ = io::Clock::now();
}

Status StartQueue::claimName(NamedOperation& operation, int rank) {
  if (failure_) return *failure_;
  if (operation.name() == nullptr) operation.setName(nameOf(operation.request().name));
  if (std::exchange(operation.name()->isInFlight, true)) return duplicate(operation.request().name, rank);
  return {};
}

Status StartQueue::admits(const std::string& text, int rank) {
  const OwnNameHandle name = find(text);
  const std::lock_guard lock(mutex_);
  if (failure_) return *failure_;
  return name != nullptr && name->isInFlight ? duplicate(text, rank) : Status();
}

OwnNameHandle StartQueue::nameOf(const std::string& text) {
  if (names_.size() >= numNamesAtMost_) {
    std::erase_if(names_, [](const auto& each) { return each.second.expired(); });
    numNamesAtMost_ = std::max(kMinNames, 2 * names_.size());
  }
  std::weak_ptr<OwnName>& known = names_[text];
  OwnNameHandle name = known.lock();
  if (name == nullptr) known = name = std::make_shared<OwnName>();
  return name;
}

OwnNameHandle StartQueue::find(const std::string& text) {
  const std::lock_guard lock(mutex_);
  const auto found = names_.find(text);
  return found == names_.end() ? nullptr : found->second.lock();
}

void StartQueue::take(std::vector<NamedHandle>& taken) {
  taken.clear();
  const std::lock_guard lock(mutex_);
  if (added_.empty()) return;
  lastName_ = added_.back()->name();
  if (isAwaitingFollower_) {
    // The queue still waits for the follower of the last name. Forget the follower if it did not start within kBurst.
    // If the driver takes the queue earlier, because a thread waits for an operation, keep the follower for the next
    // time.
    if (io::Clock::now() - firstAdd_ >= kBurst) lastName_->follower = nullptr;
    lastName_ = nullptr;
  }
  isAwaitingFollower_ = isKickDeferred_ = false;
  taken.swap(added_);
}

void StartQueue::ended(std::span<const NamedHandle> operations) {
  const std::lock_guard lock(mutex_);
  for (const NamedHandle& operation : operations) {
    if (operation != nullptr) operation->name()->isInFlight = false;
  }
}

void StartQueue::close(const Status& reason) {
  const std::lock_guard lock(mutex_);
  failure_ = reason;
}

Status StartQueue::health() {
  const std::lock_guard lock(mutex_);
  return failure_.value_or(Status());
}

}  // namespace agspeed::comm::named
