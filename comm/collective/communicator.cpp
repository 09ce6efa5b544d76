// SPDX-License-Identifier: Apache-2.0
#include "comm/collective/communicator.h"
#include "runtime/base/format.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace agspeed::comm::collective {

StatusOr<std::unique_ptr<Communicator>> Communicator::create(engine::Engine& engine, GroupOptions options) {
  const int size = engine.messenger().size(), own = engine.messenger().rank();
  if (options.members.empty()) {
    options.members.resize(static_cast<size_t>(size));
    std::iota(options.members.begin(), options.members.end(), 0);
  }
  const auto at = std::find(options.members.begin(), options.members.end(), own);
  if (at == options.members.end()) {
    return invalidArgument("group '{}': rank {} of the job is not among its members; only members create a group",
                           options.name, own);
  }
  for (const int member : options.members) {
    if (member < 0 || member >= size || std::count(options.members.begin(), options.members.end(), member) > 1) {
      return invalidArgument("group '{}': member {} is named twice or is not one of the job's {} ranks", options.name,
                             member, size);
    }
  }
  if (options.timeout <= io::Clock::duration::zero()) {
    return invalidArgument("group '" + options.name + "': the timeout must be positive");
  }
  const auto rank = static_cast<int>(at - options.members.begin());
  return std::unique_ptr<Communicator>(new Communicator(engine, std::move(options), rank));
}

Communicator::Communicator(engine::Engine& engine, GroupOptions options, int rank)
    : engine_(engine), rank_(rank), name_(options.name), members_(options.members), timeout_(options.timeout) {
  engine_.runOnDriver([&] {
    group_ = std::make_unique<Group>(engine_, std::move(options), rank);
    group_->open();
  });
}

Communicator::~Communicator() { close(); }

void Communicator::close() {
  engine_.runOnDriver([this] {
    if (!std::exchange(isClosed_, true)) group_->close();
  });
}

engine::OperationHandle Communicator::start(engine::CollectiveCall call, OperationOptions options) {
  if (Status status = validate(call, rank_, size()); !status.isOk())
    return failed(std::move(status), std::move(options.onEnd));
  if (call.collective == schedule::Collective::kBarrier) call.input = {std::span(&token_, 1)};
  auto operation = std::make_shared<CollectiveOperation>(engine_);
  operation->call = std::move(call);
  operation->priority = options.priority;
  operation->started = io::Clock::now();
  operation->deadline = deadlineOf(operation->started, options);
  operation->readiness = std::move(options.readiness);
  operation->setDriverCallback(std::move(options.onEnd));
  engine_.operationStarted();
  engine_.enqueue([this, operation] { group_->submit(operation); });
  engine_.kick();
  return operation;
}

engine::OperationHandle Communicator::send(int rank, uint32_t tag, std::span<const std::byte> bytes,
                                           OperationOptions options) {
  // A transfer only reads the bytes that it sends.
  return startMessage(true, rank, tag, {const_cast<std::byte*>(bytes.data()), bytes.size()}, std::move(options));
}

engine::OperationHandle Communicator::receive(int rank, uint32_t tag, std::span<std::byte> bytes,
                                              OperationOptions options) {
  return startMessage(false, rank, tag, bytes, std::move(options));
}

engine::OperationHandle Communicator::receiveFromAny(uint32_t tag, std::span<std::byte> bytes,
                                                     OperationOptions options) {
  return startMessage(false, kAnyRank, tag, bytes, std::move(options));
}

engine::OperationHandle Communicator::startMessage(bool isSend, int rank, uint32_t tag, std::span<std::byte> bytes,
                                                   OperationOptions options) {
  const bool isPeer = (rank == kAnyRank && !isSend) || (rank >= 0 && rank < size() && rank != rank_);
  if (!isPeer || tag == UINT32_MAX) {
    return failed(invalidArgument(
        "{} rank {} with tag {}: group '{}' has ranks 0 to {}, this rank is {}, and tags must be below 2^32 - 1",
        isSend ? "send to" : "receive from", rank, tag, name_, size() - 1, rank_));
  }
  auto operation = std::make_shared<MessageOperation>(engine_);
  operation->rank = rank;
  operation->tag = tag;
  operation->isSend = isSend;
  operation->bytes = bytes;
  operation->started = io::Clock::now();
  operation->deadline = deadlineOf(operation->started, options);
  operation->readiness = std::move(options.readiness);
  engine_.operationStarted();
  engine_.enqueue([this, operation] { group_->submit(operation); });
  engine_.kick();
  return operation;
}

void Communicator::setPlan(plan::Plan plan) {
  engine_.enqueue([this, plan = std::move(plan)]() mutable { group_->setPlan(std::move(plan)); });
}

void Communicator::abort(const std::string& reason) {
  engine_.runOnDriver([&] { group_->fail(unavailable("aborted: " + reason)); });
}

Status Communicator::health() {
  Status status;
  engine_.runOnDriver([&] { status = group_->health(); });
  return status;
}

io::Clock::time_point Communicator::deadlineOf(io::Clock::time_point now, const OperationOptions& options) const {
  const auto timeout = options.timeout > io::Clock::duration::zero() ? options.timeout : timeout_;
  return timeout < io::Clock::time_point::max() - now ? now + timeout : io::Clock::time_point::max();
}

engine::OperationHandle Communicator::failed(Status status, engine::Operation::Callback onEnd) {
  auto operation = std::make_shared<engine::Operation>(engine_);
  operation->setDriverCallback(std::move(onEnd));
  operation->complete(status.withContext(formatText("rank {} of group '{}'", rank_, name_)));
  return operation;
}

}  // namespace agspeed::comm::collective
