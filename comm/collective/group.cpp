// SPDX-License-Identifier: Apache-2.0
#include "comm/collective/group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/format.h"

namespace agspeed::comm::collective {

namespace {

/// If an operation is not complete after this time, its rank sends a list of its most recent calls to the ranks that
/// the operation waits for. These ranks compare the list with their own calls, so that calls that differ become an
/// error.
constexpr std::chrono::milliseconds kMismatchCheckAfter{250};
constexpr int kSequenceBits = 48;

std::string seconds(io::Clock::duration duration) {
  return formatText("{:.2f} s", std::chrono::duration<double>(duration).count());
}

/// Returns the `sequence` in the names of an operation's messages. Its low 48 bits are the number of the operation. Its
/// high 16 bits are bits of the chain. So messages of ranks whose calls differ match with a probability of 2^-16 only.
uint64_t nameOf(const CollectiveOperation& operation) {
  return operation.chain << kSequenceBits | (operation.sequence & ((uint64_t{1} << kSequenceBits) - 1));
}

engine::ScheduleKey scheduleOf(const CollectiveOperation& operation) {
  const int root = hasRoot(operation.call.collective) ? operation.call.root : 0;
  return {operation.fitted.algorithm, root, operation.fitted.localGroups};
}

/// Replaces the input of a premultiplied sum by a multiplied copy. The copy of an all-reduce is in its output, other
/// copies are in memory of their own.
void premultiply(CollectiveOperation& operation) {
  engine::CollectiveCall& call = operation.call;
  if (!isReduction(call.collective) || call.op != reduce::ReduceOp::kPremultipliedSum) return;
  const size_t elementBytes = sizeInBytes(call.dtype);
  const bool fitsOutput = call.collective == schedule::Collective::kAllReduce;
  size_t size = 0;
  for (const auto chunk : call.input) size += chunk.size();
  if (!fitsOutput) operation.scaledInput = std::make_unique_for_overwrite<std::byte[]>(size);
  std::byte* next = fitsOutput ? call.output[0].data() : operation.scaledInput.get();
  for (auto& chunk : call.input) {
    reduce::multiply(next, chunk.data(), chunk.size() / elementBytes, call.dtype, call.factor);
    chunk = {next, chunk.size()};
    next += chunk.size();
  }
}

std::string describe(const CollectiveOperation& operation) {
  return formatText("{}, operation {}", toString(operation.signature), operation.sequence);
}

std::string describe(const MessageOperation& operation) { return toString(operation); }

}  // namespace

Group::Group(engine::Engine& engine, GroupOptions options, int rank)
    : engine_(engine),
      options_(std::move(options)),
      rank_(rank),
      mailbox_(engine, *this, options_.members, rank, messageCommunicator(options_)),
      history_(options_.name, rank),
      fitter_(options_.name, rank, numRanks(), options_.plan),
      executions_(engine, *this, rank, numRanks()),
      queue_(numRanks(), options_.maxInFlightBytes),
      messages_(engine, *this, options_.members, rank, messageCommunicator(options_), options_.name) {}

void Group::open() {
  engine_.addClient(*this);
  mailbox_.open();
}

void Group::close() {
  const Status reason = unavailable("the group was destroyed");
  queue_.running().empty() ? endAll(reason) : fail(reason);
  mailbox_.close();
  engine_.messenger().dropCommunicator(messageCommunicator(options_));
  messages_.close();
  engine_.removeClient(*this);
}

// --- starting -----------------------------------------------------------------------------------------------------

void Group::submit(CollectiveHandle operation) {
  const engine::CollectiveCall& call = operation->call;
  if (fitter_.isExchangeDueBefore(call) && !failure_) exchangeHostStats(call);
  assignSequence(operation, call);
  if (failure_) return endAll(*failure_);
  if (const auto mismatch = history_.checkRanksAhead()) return fail(invalidArgument(*mismatch));
  startWaiting();
}

void Group::exchangeHostStats(const engine::CollectiveCall& call) {
  auto exchange = std::make_shared<CollectiveOperation>(engine_);
  exchange->call = fitter_.exchange();
  exchange->isHostStatsExchange = true;
  exchange->priority = INT32_MIN;
  exchange->started = io::Clock::now();
  exchange->deadline = io::Clock::time_point::max();  // `call` starts after the exchange, and its deadline covers both
  engine_.operationStarted();
  assignSequence(std::move(exchange), call);
}

void Group::assignSequence(CollectiveHandle operation, const engine::CollectiveCall& call) {
  operation->choice = fitter_.choose(operation->call);
  operation->fitted = fitter_.fit(operation->call, operation->choice);
  engine::CallSignature& signature = operation->signature = signatureOf(call);
  signature.algorithm = static_cast<uint32_t>(operation->choice.algorithm - schedule::algorithms().data());
  signature.planVersion =
      operation->isHostStatsExchange ? engine::CallSignature::kHostStatsExchange : fitter_.planVersion();
  signature.segmentBytes = operation->choice.segmentBytes;
  const HistoryEntry& entry = history_.add(signature);
  operation->sequence = entry.sequence;
  operation->chain = entry.chain;
  engine_.tickBy(operation->deadline);
  queue_.add(std::move(operation));
}

void Group::submit(std::shared_ptr<MessageOperation> operation) {
  messages_.add(operation);
  if (failure_) return endAll(*failure_);
  engine_.tickBy(operation->deadline);
  if (const Status status = messages_.start(*operation); !status.isOk()) fail(status);
}

void Group::startWaiting() {
  if (isStarting_) return;  // a call within the loops below: the loops start the operations
  isStarting_ = true;
  // A call in these loops may fail the group. fail() then empties the queue, so both loops end.
  for (size_t i = 0; i < queue_.waiting().size(); ++i) {
    const StatusOr<bool> isReady = isInputReady(queue_.waiting()[i]->readiness, engine_);
    if (!isReady.hasValue()) fail(isReady.status());
  }
  while (const CollectiveHandle next = queue_.startNext()) start(*next);
  isStarting_ = false;
}

void Group::start(CollectiveOperation& operation) {
  premultiply(operation);
  operation.execution = &executions_.acquire(scheduleOf(operation));
  engine_.tickBy(operation.started + kMismatchCheckAfter);
  if (operation.isHostStatsExchange) contributeHostStats();
  operation.execution->start({.call = &operation.call,
                              .members = options_.members,
                              .communicator = collectiveCommunicator(options_),
                              .sequence = nameOf(operation),
                              .segmentElements = operation.fitted.segmentBytes / sizeInBytes(operation.call.dtype),
                              .shares = operation.fitted.shares,
                              .window = operation.choice.window,
                              .priority = operation.priority,
                              .group = options_.name,
                              .number = operation.sequence});
}

void Group::contributeHostStats() {
  const messaging::Messenger& messenger = engine_.messenger();
  double farthest = 0;  // the longest round trip to a member; 0 if one of them is not known
  for (const int member : options_.members) {
    if (member == messenger.rank()) continue;
    const double roundTrip = messenger.roundTripSeconds(member);
    farthest = std::max(farthest, roundTrip);
    if (roundTrip > 0) continue;
    farthest = 0;
    break;
  }
  fitter_.contribute(messenger.bytesPerSecond(), farthest, messenger.host());
}

void Group::applyHostStats(uint64_t sequence) {
  fitter_.applyHostStats();
  for (const CollectiveHandle& operation : queue_.waiting()) {
    if (operation->sequence > sequence) operation->fitted = fitter_.fit(operation->call, operation->choice);
  }
}

// --- ending -------------------------------------------------------------------------------------------------------

void Group::executionEnded(engine::Execution& execution) {
  const CollectiveHandle operation = queue_.finish(execution);
  release(*operation);
  end(*operation, {});
  if (operation->isHostStatsExchange) applyHostStats(operation->sequence);
  startWaiting();
}

void Group::release(CollectiveOperation& operation) {
  executions_.release(scheduleOf(operation), *std::exchange(operation.execution, nullptr));
  operation.scaledInput.reset();
}

void Group::end(engine::Operation& operation, const Status& status) {
  operation.complete(status);
  engine_.operationEnded();
}

void Group::executionFailed(engine::Execution&, int rank, const Status& status) { transferFailed(rank, status); }

void Group::transferFailed(int rank, const Status& status) {
  if (status.code() != StatusCode::kUnavailable) return fail(status);
  const int member = options_.members[static_cast<size_t>(rank)];
  const std::string ofJob = member == rank ? "" : formatText(" (rank {} of the job)", member);
  const Status reason = status.withContext(formatText("rank {}{} is lost", rank, ofJob));
  if (!failure_) sendFailure(reason, rank);
  endAll(reason);
}

void Group::fail(const Status& reason) {
  if (!failure_) sendFailure(reason, -1);
  endAll(reason);
}

void Group::sendFailure(const Status& reason, int lostRank) {
  ControlMessage message;
  message.kind = ControlKind::kFailed;
  message.code = static_cast<uint32_t>(reason.code());
  message.lostRank = lostRank;
  message.textLength = static_cast<uint32_t>(std::min(reason.message().size(), ControlMessage::kTextBytes));
  std::memcpy(message.text.data(), reason.message().data(), message.textLength);
  for (int rank = 0; rank < numRanks(); ++rank) {
    if (rank != rank_ && rank != lostRank) mailbox_.send(rank, message);
  }
}

void Group::endAll(const Status& reason) {
  const bool isFirst = !failure_;
  if (isFirst) failure_ = reason;
  std::vector<std::string> progressOfWaiting;  // make these texts first: they need the running operations
  for (const CollectiveHandle& operation : queue_.waiting()) progressOfWaiting.push_back(progressOf(*operation));
  const CollectiveQueue::Operations operations = queue_.takeAll();
  for (const CollectiveHandle& operation : operations.running) {
    const std::string progress = progressOf(*operation);
    operation->execution->cancel(reason);
    release(*operation);
    end(*operation, explain(describe(*operation), operation->started, reason, progress));
  }
  auto progress = progressOfWaiting.begin();
  for (const CollectiveHandle& operation : operations.waiting) {
    end(*operation, explain(describe(*operation), operation->started, reason, *progress++));
  }
  for (const PointToPoint::Handle& message : messages_.takeAll(reason)) {
    end(*message, explain(describe(*message), message->started, reason, ""));
  }
  if (isFirst) engine_.messenger().dropCommunicator(collectiveCommunicator(options_));
}

std::string Group::progressOf(const MessageOperation& operation) const {
  return operation.readiness ? " before its bytes were there" : "";
}

std::string Group::progressOf(const CollectiveOperation& operation) const {
  if (operation.execution) return " in " + operation.execution->progress();
  if (operation.readiness) return " before its input was there";
  const CollectiveOperation* holder = queue_.holderOf(operation);
  if (holder == nullptr) return " before it started";
  if (!holder->execution) return " before it started, because " + describe(*holder) + " had not started";
  return " before it started, " +
         (holder->isHostStatsExchange ? "while the ranks exchanged host statistics: "
                                      : "after " + describe(*holder) + ", in ") +
         holder->execution->progress();
}

Status Group::explain(const std::string& operation, io::Clock::time_point started, const Status& reason,
                      const std::string& progress) const {
  // The reason comes first, because it names the rank that caused the failure.
  return Status(reason.code(), formatText("{}; rank {} of group '{}': {} failed after {}{}; the group is not usable "
                                          "any more: destroy it and create it again",
                                          reason.message(), rank_, options_.name, operation,
                                          seconds(io::Clock::now() - started), progress));
}

// --- waiting and agreement ----------------------------------------------------------------------------------------

io::Clock::time_point Group::tick(io::Clock::time_point now) {
  auto next = checkDeadlines(now);
  for (const CollectiveHandle& operation : queue_.running()) {
    if (operation->hasSentHistory) continue;
    const auto checkAt = operation->started + kMismatchCheckAfter;
    if (now >= checkAt) {
      sendCallHistory(*operation);
    } else {
      next = std::min(next, checkAt);
    }
  }
  if (const Status status = messages_.startWaiting(); !status.isOk()) fail(status);
  startWaiting();
  return next;
}

io::Clock::time_point Group::checkDeadlines(io::Clock::time_point now) {
  auto next = io::Clock::time_point::max();
  std::optional<Status> expired;
  const auto check = [&](const auto& operation) {
    next = std::min(next, operation->deadline);
    if (now < operation->deadline || expired) return;
    expired = resourceExhausted("{} timed out: its timeout of {} passed{}", describe(*operation),
                                seconds(operation->deadline - operation->started), progressOf(*operation));
  };
  for (const auto& operation : queue_.running()) check(operation);
  for (const auto& operation : queue_.waiting()) check(operation);
  for (const auto& message : messages_.underWay()) check(message);
  if (!expired) return next;
  fail(*expired);
  return io::Clock::time_point::max();
}

void Group::sendCallHistory(CollectiveOperation& operation) {
  operation.hasSentHistory = true;
  ControlMessage message;
  message.history = history_.recent(operation.sequence);
  for (const int rank : operation.execution->awaitedRanks()) mailbox_.send(rank, message);
}

void Group::controlMessageArrived(int rank, const ControlMessage& message) {
  if (failure_) return;
  if (message.kind == ControlKind::kFailed) {
    const bool isMismatch = message.code == static_cast<uint32_t>(StatusCode::kInvalidArgument);
    const std::string sender = formatText("rank {}", rank), text(message.reason());
    return endAll(Status(isMismatch ? StatusCode::kInvalidArgument : StatusCode::kUnavailable,
                         message.lostRank >= 0 ? text + " (as " + sender + " says)" : sender + " gave up: " + text));
  }
  if (const auto mismatch = history_.check(rank, message.history)) fail(invalidArgument(*mismatch));
}

// --- state, for inspections of a hang -----------------------------------------------------------------------------

engine::GroupState Group::state() const {
  engine::GroupState state;
  state.name = options_.name;
  state.members = options_.members;
  const HistoryEntry& last = history_.last();
  state.numCalls = last.sequence;
  if (last.sequence > 0) state.lastCall = toString(last.signature);
  if (failure_) state.failure = failure_->message();
  state.numOperations = queue_.running().size() + queue_.waiting().size() + messages_.underWay().size();
  const auto add = [&](const auto& operations) {
    for (const auto& operation : operations) {
      if (state.operations.size() == engine::GroupState::kMaxOperations) return;
      state.operations.push_back(stateOf(*operation));
    }
  };
  add(queue_.running());
  add(queue_.waiting());
  add(messages_.underWay());
  return state;
}

engine::OperationState Group::stateOf(const CollectiveOperation& operation) const {
  engine::OperationState state;
  state.call = toString(operation.signature);
  state.sequence = operation.sequence;
  state.since = operation.started;
  if (operation.execution != nullptr) {
    const engine::Execution::Traffic traffic = operation.execution->traffic();
    state.numBytes = traffic.numBytes;
    state.numBytesMoved = traffic.numMoved;
    state.awaited = inWorld(operation.execution->awaitedRanks());
  } else if (operation.readiness) {
    state.blockedBy = "its input is not ready";
  } else if (const CollectiveOperation* holder = queue_.holderOf(operation)) {
    state.blockedBy = formatText("operation {} of the group is not done", holder->sequence);
  } else {
    state.blockedBy = "operations before it have too many bytes in flight";
  }
  return state;
}

engine::OperationState Group::stateOf(const MessageOperation& operation) const {
  engine::OperationState state;
  state.call = toString(operation);
  state.since = operation.started;
  state.numBytes = operation.bytes.size();
  if (operation.isPending) state.numBytesMoved = engine_.messenger().numBytesMoved(operation);
  if (operation.readiness) state.blockedBy = "its bytes are not ready";
  for (int rank = 0; rank < numRanks(); ++rank) {
    const bool mayAnswer = operation.rank == kAnyRank ? rank != rank_ : rank == operation.rank;
    if (mayAnswer) state.awaited.push_back(options_.members[static_cast<size_t>(rank)]);
  }
  return state;
}

std::vector<int> Group::inWorld(const std::vector<int>& ranks) const {
  std::vector<int> numbers;
  for (const int rank : ranks) numbers.push_back(options_.members[static_cast<size_t>(rank)]);
  return numbers;
}

}  // namespace agspeed::comm::collective
