// SPDX-License-Identifier: Apache-2.0
#include "comm/named/start_queue.h"

#include <utility>

namespace agspeed::comm {
namespace {

constexpr const char* kDuplicateName =
    "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor that is currently "
    "being processed. If you want to request another tensor, use a different tensor name.";

}  // namespace

StatusOr<StartQueue::Added> StartQueue::add(NamedHandle operation, int rank) {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  if (!failure_) return failure_;
  const std::string& name = operation->call.request.name;
  if (!names_.insert(name).second) {
    return invalidArgument("{} The name is '{}', at rank {}.", kDuplicateName, name, rank);
  }
  const Added added{.isFirst = added_.empty(), .isKickDue = now - lastKick_ >= kGather};
  if (added.isKickDue) lastKick_ = now;
  added_.push_back(std::move(operation));
  return added;
}

std::vector<NamedHandle> StartQueue::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(added_, {});
}

void StartQueue::ended(const std::vector<NamedHandle>& operations) {
  const std::lock_guard lock(mutex_);
  for (const NamedHandle& operation : operations) {
    if (operation != nullptr) names_.erase(operation->call.request.name);
  }
}

void StartQueue::close(const Status& reason) {
  const std::lock_guard lock(mutex_);
  failure_ = reason;
}

Status StartQueue::health() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace agspeed::comm
