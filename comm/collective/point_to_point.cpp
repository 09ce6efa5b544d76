// SPDX-License-Identifier: Apache-2.0
#include "comm/collective/point_to_point.h"

#include <algorithm>
#include <utility>

#include "runtime/base/format.h"

namespace agspeed::comm::collective {
namespace {

constexpr std::chrono::milliseconds kProbeInterval{1};
constexpr int kAtOnce = INT32_MIN;  ///< the priority of work that runs before all other work

}  // namespace

void MessageOperation::finished(const Status& status) {
  if (std::exchange(isPending, false)) owner->transferFinished(*this, status);
}

std::string MessageOperation::describe() const {
  return formatText("{} of group '{}'", toString(*this), owner->group_);
}

std::string toString(const MessageOperation& operation) {
  const std::string rank = operation.rank == kAnyRank ? "any rank" : formatText("rank {}", operation.rank);
  return formatText("{}{} ({} bytes, tag {})", operation.isSend ? "send to " : "receive from ", rank,
                    operation.bytes.size(), operation.tag);
}

PointToPoint::PointToPoint(engine::Engine& engine, TransferListener& listener, std::span<const int> members, int rank,
                           uint32_t communicator, std::string group)
    : engine_(engine),
      listener_(listener),
      members_(members),
      rank_(rank),
      communicator_(communicator),
      group_(std::move(group)) {}

void PointToPoint::add(Handle operation) {
  operation->owner = this;
  operations_.push_back(std::move(operation));
}

Status PointToPoint::start(MessageOperation& operation) {
  if (operation.rank == kAnyRank) return findSource(operation);
  assignSequence(operation);
  return transfer(operation);
}

void PointToPoint::assignSequence(MessageOperation& operation) {
  auto& counts = operation.isSend ? numSent_ : numReceived_;
  operation.id = {communicator_, operation.tag, ++counts[{operation.rank, operation.tag}]};
  operation.peer = members_[static_cast<size_t>(operation.rank)];
}

Status PointToPoint::findSource(MessageOperation& operation) {
  const auto numRanks = static_cast<int>(members_.size());
  for (int i = 0; i < numRanks; ++i) {
    const int rank = (firstSource_ + i) % numRanks;
    if (rank == rank_) continue;
    const wire::MessageId id{communicator_, operation.tag, numReceived_[{rank, operation.tag}] + 1};
    if (!engine_.messenger().probe(members_[static_cast<size_t>(rank)], id)) continue;
    firstSource_ = rank + 1;
    operation.rank = rank;
    return start(operation);
  }
  engine_.tickBy(io::Clock::now() + kProbeInterval);
  return {};
}

Status PointToPoint::transfer(MessageOperation& operation) {
  AG_ASSIGN_OR_RETURN(const bool isReady, isInputReady(operation.readiness, engine_));
  if (!isReady) return {};
  operation.isPending = true;
  operation.isSend ? engine_.messenger().send(operation) : engine_.messenger().receive(operation);
  return {};
}

Status PointToPoint::startWaiting() {
  for (size_t i = 0; i < operations_.size();) {
    const Handle operation = operations_[i];
    if (operation->rank == kAnyRank) {
      AG_RETURN_IF_ERROR(findSource(*operation));
    } else if (operation->readiness) {
      AG_RETURN_IF_ERROR(transfer(*operation));
    }
    if (i < operations_.size() && operations_[i] == operation) ++i;  // otherwise it has completed and was removed
  }
  return {};
}

void PointToPoint::transferFinished(MessageOperation& operation, const Status& status) {
  if (!status.isOk()) {
    // Call the listener later. It cancels other transfers, which the messenger does not allow within finished().
    if (failure_) return;
    engine_.addWork(*this, 0, kAtOnce);
    failure_ = status;
    failedRank_ = operation.rank;
    return;
  }
  const auto at = std::find_if(operations_.begin(), operations_.end(),
                               [&](const Handle& other) { return other.get() == &operation; });
  const Handle ended = std::move(*at);
  operations_.erase(at);
  ended->complete({});
  engine_.operationEnded();
}

void PointToPoint::work(uint64_t) { listener_.transferFailed(failedRank_, *failure_); }

std::vector<PointToPoint::Handle> PointToPoint::takeAll(const Status& reason) {
  std::vector<Handle> taken = std::exchange(operations_, {});
  for (const Handle& operation : taken) {
    if (std::exchange(operation->isPending, false)) engine_.messenger().cancel(*operation, reason);
  }
  return taken;
}

}  // namespace agspeed::comm::collective
