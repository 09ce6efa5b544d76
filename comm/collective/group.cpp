// SPDX-License-Identifier: Apache-2.0
#include "comm/collective/group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/plan/local_groups.h"
#include "comm/plan/shares.h"
#include "runtime/base/log.h"

namespace agspeed::comm {

namespace {

/// How long an operation waits before it asks the ranks it waits for.
constexpr std::chrono::milliseconds kMismatchCheckAfter{250};
/// How often a receive from any rank looks for a message: none announces itself to a waiting thread.
constexpr std::chrono::milliseconds kLookInterval{1};
/// How often operations ask whether their input is there: copies from a device take some 10 us to some ms.
constexpr std::chrono::microseconds kReadyInterval{50};
constexpr int kAtOnce = INT32_MIN;
constexpr int kSequenceBits = 48;

std::string seconds(Clock::duration duration) {
  return formatText("{:.2f} s", std::chrono::duration<double>(duration).count());
}

/// What message names carry: the operation's number and bits of the chain up to it.
uint64_t nameOf(const CollectiveOperation& operation) {
  return operation.chain << kSequenceBits | (operation.sequence & ((uint64_t{1} << kSequenceBits) - 1));
}

size_t bytesOf(const CollectiveCall& call) {
  size_t bytes = 0;
  for (const auto chunk : call.input) bytes += chunk.size();
  for (const auto chunk : call.output) bytes += chunk.size();
  return bytes;
}

/// Whether it may start before older ones have. A barrier ends after all that was called before it.
bool mayPass(const CollectiveOperation& operation) {
  return !operation.readiness && operation.call.collective != Collective::kBarrier;
}

/// Replaces the input of a premultiplied sum by a multiplied copy: in the output where that is as large, else beside.
void premultiply(CollectiveOperation& operation) {
  CollectiveCall& call = operation.call;
  if (!isReduction(call.collective) || call.op != ReduceOp::kPremultipliedSum) return;
  const size_t elementBytes = sizeInBytes(call.dtype);
  const bool fitsOutput = call.collective == Collective::kAllReduce;
  size_t size = 0;
  for (const auto chunk : call.input) size += chunk.size();
  if (!fitsOutput) operation.scaledInput = std::make_unique_for_overwrite<std::byte[]>(size);
  std::byte* next = fitsOutput ? call.output[0].data() : operation.scaledInput.get();
  for (auto& chunk : call.input) {
    multiply(next, chunk.data(), chunk.size() / elementBytes, call.dtype, call.factor);
    chunk = {next, chunk.size()};
    next += chunk.size();
  }
}

}  // namespace

void MessageOperation::finished(const Status& status) {
  if (std::exchange(isPending, false)) group->endMessage(*this, status);
}

std::string MessageOperation::describe() const {
  return group->describe(*this) + " of group '" + group->options_.name + "'";
}

Group::Group(Engine& engine, GroupOptions options, int rank)
    : engine_(engine),
      options_(std::move(options)),
      rank_(rank),
      mailbox_(engine, *this, options_.members, rank, messageCommunicator()),
      hosts_(static_cast<int>(options_.members.size())) {}

void Group::open() {
  engine_.addClient(*this);
  mailbox_.open();
}

void Group::close() {
  const Status reason = unavailable("the group was destroyed");
  running_.empty() ? endAll(reason) : fail(reason);
  mailbox_.close();
  engine_.messenger().dropCommunicator(messageCommunicator());
  engine_.removeWork(*this);
  engine_.removeClient(*this);
}

// --- starting -----------------------------------------------------------------------------------------------------

void Group::setPlan(Plan plan) { options_.plan = std::move(plan); }

void Group::submit(CollectiveHandle operation) {
  const CollectiveCall& call = operation->call;
  if (options_.plan.shares.empty() && hosts_.isDueBefore(call) && failure_) compareHosts(call);
  enter(operation, call);
  if (!failure_) return endAll(failure_);
  for (const auto& [rank, message] : questions_) {
    if (const auto difference = findDifference(rank, message)) return fail(invalidArgument(*difference));
  }
  std::erase_if(questions_, [&](const auto& question) { return question.second.history[0].sequence <= sequence_; });
  startWaiting();
}

void Group::compareHosts(const CollectiveCall& call) {
  auto comparison = std::make_shared<CollectiveOperation>(engine_);
  comparison->call = hosts_.gather(rank_);
  comparison->priority = INT32_MIN;
  comparison->started = Clock::now();
  comparison->deadline = Clock::time_point::max();  // the operation that waits for it has one
  engine_.operationStarted();
  comparisons_.push_back(comparison);
  enter(comparison, call);
}

double Group::farthestSeconds() const {
  double farthest = 0;
  for (const int member : options_.members) {
    if (member == engine_.messenger().rank()) continue;
    const double seconds = engine_.messenger().roundTripSeconds(member);
    if (seconds == 0) return 0;
    farthest = std::max(farthest, seconds);
  }
  return farthest;
}

void Group::learn() {
  const uint64_t sequence = comparisons_.front()->sequence;
  comparisons_.pop_front();
  const bool wereEqual = shares_.empty();
  const int blockBefore = std::exchange(localGroupSize_, hosts_.localGroupSize());
  shares_ = localGroupSize_ > 1 ? std::vector<uint32_t>() : hosts_.shares();
  network_ = hosts_.network();
  if (rank_ == 0 && !(wereEqual && shares_.empty())) {
    AG_LOG(kInfo, "group '" + options_.name + "': ranks of unequal speed (" + hosts_.describeRates() +
                      ") own chunks of unequal size");
  }
  if (rank_ == 0 && localGroupSize_ != blockBefore) {
    AG_LOG(kInfo, "group '{}': every {} ranks share a host; large collectives reduce and gather there first",
           options_.name, localGroupSize_);
  }
  fitToNetwork();
  for (const CollectiveHandle& operation : waiting_) {
    if (operation->sequence > sequence) fitToHosts(*operation);
  }
}

void Group::fitToNetwork() {
  fitted_.rules.clear();
  if (!network_ || localGroupSize_ > 1 || !shares_.empty()) return;
  const auto numRanks = static_cast<int>(options_.members.size());
  if (!counted_) counted_ = countAllReduces(numRanks);
  fitted_.rules = comm::fitToNetwork(*counted_, *network_, numRanks);
}

void Group::fitToHosts(CollectiveOperation& operation) const {
  const Collective collective = operation.call.collective;
  const Choice& choice = operation.choice;
  const auto numRanks = static_cast<int>(options_.members.size());
  const bool isWidened = accumulatorOf(operation.call.dtype) != operation.call.dtype;
  const bool isOnHosts = choice.hierarchical && gainsFromLocalGroups(collective, isWidened, localGroupSize_);
  operation.algorithm = isOnHosts ? choice.hierarchical : choice.algorithm;
  if (!choice.isByRule && choice.shares.empty() && !isWidened && !fitted_.rules.empty()) {
    const size_t bytes = agreedBytes(operation.call);
    const Choice fitted = fitted_.choose(collective, bytes, numRanks, false);
    if (fitted.isByRule) operation.algorithm = fitted.algorithm;
  }
  operation.localGroupSize = operation.algorithm->name == "hierarchical" ? localGroupSize_ : 1;
  const bool isOurs = choice.shares.empty() && hasChunkPerRank(collective, *operation.algorithm);
  operation.shares = isOurs ? shares_ : choice.shares;
  operation.segmentBytes = choice.segmentBytes;
  if (isOurs && !shares_.empty() && network_) {
    operation.segmentBytes = segmentForShares(choice.segmentBytes, choice.window, numRanks, *network_);
  }
}

void Group::enter(CollectiveHandle operation, const CollectiveCall& call) {
  operation->sequence = ++sequence_;
  const auto numRanks = static_cast<int>(options_.members.size());
  operation->choice = options_.plan.choose(operation->call.collective, agreedBytes(operation->call), numRanks,
                                           operation->call.isContiguous);
  fitToHosts(*operation);
  const bool compares = !comparisons_.empty() && comparisons_.back() == operation;
  operation->signature = signatureOf(call);
  operation->signature.algorithm = static_cast<uint32_t>(operation->choice.algorithm - algorithms().data());
  operation->signature.planVersion = compares ? CallSignature::kHostStatsExchange : options_.plan.version;
  operation->signature.segmentBytes = operation->choice.segmentBytes;
  operation->chain = chain_ = extendChain(chain_, operation->signature);
  remember(*operation);
  engine_.tickBy(operation->deadline);
  waiting_.push_back(std::move(operation));
}

void Group::submit(std::shared_ptr<MessageOperation> operation) {
  operation->group = this;
  messages_.push_back(operation);
  if (!failure_) return endAll(failure_);
  engine_.tickBy(operation->deadline);
  operation->rank == kAnyRank ? findSource(*operation) : enter(*operation);
}

void Group::enter(MessageOperation& operation) {
  auto& counts = operation.isSend ? numSent_ : numReceived_;
  operation.id = {messageCommunicator(), operation.tag, ++counts[{operation.rank, operation.tag}]};
  operation.peer = options_.members[static_cast<size_t>(operation.rank)];
  startMessage(operation);
}

void Group::startMessage(MessageOperation& operation) {
  if (!isReady(operation.readiness)) return;
  operation.isPending = true;
  operation.isSend ? engine_.messenger().send(operation) : engine_.messenger().receive(operation);
}

void Group::findSource(MessageOperation& operation) {
  const auto numRanks = static_cast<int>(options_.members.size());
  for (int i = 0; i < numRanks; ++i) {
    const int rank = (firstSource_ + i) % numRanks;
    if (rank == rank_) continue;
    const MessageId id{messageCommunicator(), operation.tag, numReceived_[{rank, operation.tag}] + 1};
    if (!engine_.messenger().probe(options_.members[static_cast<size_t>(rank)], id)) continue;
    firstSource_ = rank + 1;
    operation.rank = rank;
    return enter(operation);
  }
  engine_.tickBy(Clock::now() + kLookInterval);
}

bool Group::isReady(Readiness& readiness) {
  if (!readiness) return true;
  const StatusOr<bool> isThere = readiness();
  if (!isThere) {
    fail(isThere.status());
    return false;
  }
  if (*isThere) {
    readiness = nullptr;
  } else {
    engine_.tickBy(Clock::now() + kReadyInterval);
  }
  return *isThere;
}

void Group::startWaiting() {
  if (isStarting_) return;  // the loop below goes on
  isStarting_ = true;
  // A failure empties the list.
  for (size_t i = 0; i < waiting_.size(); ++i) {
    if (!waiting_[i]->readiness) continue;
    const CollectiveHandle operation = waiting_[i];
    isReady(operation->readiness);
  }
  while (CollectiveHandle next = takeNext()) start(next);
  isStarting_ = false;
}

Group::CollectiveHandle Group::takeNext() {
  if (waiting_.empty()) return nullptr;
  const auto isOlder = [&](const CollectiveHandle& other) { return other->sequence < waiting_.front()->sequence; };
  auto at = waiting_.begin();
  if ((*at)->readiness || std::any_of(running_.begin(), running_.end(), isOlder)) {
    at = std::min_element(waiting_.begin(), waiting_.end(), [](const auto& a, const auto& b) {
      return std::tuple(!mayPass(*a), a->priority, a->sequence) < std::tuple(!mayPass(*b), b->priority, b->sequence);
    });
    if (!mayPass(**at)) return nullptr;
    if (bytesInFlight_ > 0 && bytesInFlight_ + bytesInFlight(**at) > options_.maxInFlightBytes) return nullptr;
  }
  if (!comparisons_.empty() && (*at)->sequence > comparisons_.front()->sequence) return nullptr;
  CollectiveHandle next = std::move(*at);
  waiting_.erase(at);
  return next;
}

void Group::start(const CollectiveHandle& operation) {
  premultiply(*operation);
  Pool& pool = poolOf(*operation);
  if (pool.idle.empty()) {
    ExecutionListener& listener = *this;
    pool.all.push_back(std::make_unique<Execution>(pool.prepared, engine_, listener));
    pool.idle.push_back(pool.all.back().get());
  }
  operation->execution = pool.idle.back();
  pool.idle.pop_back();
  running_.push_back(operation);
  bytesInFlight_ += bytesInFlight(*operation);
  engine_.tickBy(operation->started + kMismatchCheckAfter);
  if (isComparison(operation)) {
    const Messenger& messenger = engine_.messenger();
    hosts_.contribute(rank_, messenger.bytesPerSecond(), farthestSeconds(), messenger.host());
  }
  const size_t elementBytes = sizeInBytes(operation->call.dtype);
  operation->execution->start({.call = &operation->call,
                               .members = options_.members,
                               .communicator = collectiveCommunicator(),
                               .sequence = nameOf(*operation),
                               .segmentElements = operation->segmentBytes / elementBytes,
                               .shares = operation->shares,
                               .window = operation->choice.window,
                               .priority = operation->priority,
                               .group = options_.name,
                               .number = operation->sequence});
}

Group::Pool& Group::poolOf(const CollectiveOperation& operation) {
  const int root = hasRoot(operation.call.collective) ? operation.call.root : 0;
  const std::tuple key(operation.algorithm, root, operation.localGroupSize);
  if (auto at = pools_.find(key); at != pools_.end()) return at->second;
  const ScheduleRequest request{operation.call.collective, rank_, static_cast<int>(options_.members.size()), root,
                                operation.localGroupSize};
  return pools_.try_emplace(key, operation.algorithm->make(request)).first->second;
}

size_t Group::bytesInFlight(const CollectiveOperation& operation) const {
  const size_t most = std::min<size_t>(operation.segmentBytes, options_.maxInFlightBytes) * operation.choice.window *
                      options_.members.size();
  return std::min(bytesOf(operation.call), most);
}

// --- ending -------------------------------------------------------------------------------------------------------

void Group::executionEnded(Execution& execution) {
  const auto at = std::find_if(running_.begin(), running_.end(),
                               [&](const CollectiveHandle& operation) { return operation->execution == &execution; });
  const CollectiveHandle operation = std::move(*at);
  running_.erase(at);
  bytesInFlight_ -= bytesInFlight(*operation);
  release(*operation);
  operation->complete({});
  engine_.operationEnded();
  if (isComparison(operation)) learn();
  startWaiting();
}

void Group::release(CollectiveOperation& operation) {
  poolOf(operation).idle.push_back(std::exchange(operation.execution, nullptr));
  operation.scaledInput.reset();
}

void Group::executionFailed(Execution&, int rank, const Status& status) { failTransfer(rank, status); }

void Group::endMessage(MessageOperation& operation, const Status& status) {
  if (!status) {
    // The messenger must not be asked to cancel other transfers from here.
    if (!messageFailure_) return;
    engine_.addWork(*this, 0, kAtOnce);
    messageFailure_ = status;
    messageFailedRank_ = operation.rank;
    return;
  }
  const auto at = std::find_if(messages_.begin(), messages_.end(),
                               [&](const auto& message) { return message.get() == &operation; });
  const auto message = std::move(*at);
  messages_.erase(at);
  message->complete({});
  engine_.operationEnded();
}

void Group::work(uint64_t) { failTransfer(messageFailedRank_, messageFailure_); }

void Group::failTransfer(int rank, const Status& status) {
  if (status.code() != StatusCode::kUnavailable) return fail(status);
  const int member = options_.members[static_cast<size_t>(rank)];
  const std::string ofJob = member == rank ? "" : formatText(" (rank {} of the job)", member);
  const Status reason = status.withContext(formatText("rank {}{} is lost", rank, ofJob));
  if (failure_) tellOthers(reason, rank);
  endAll(reason);
}

void Group::fail(const Status& reason) {
  if (failure_) tellOthers(reason, -1);
  endAll(reason);
}

void Group::tellOthers(const Status& reason, int lostRank) {
  ControlMessage message;
  message.kind = ControlKind::kFailed;
  message.code = static_cast<uint32_t>(reason.code());
  message.lostRank = lostRank;
  message.textLength = static_cast<uint32_t>(std::min(reason.message().size(), ControlMessage::kTextBytes));
  std::memcpy(message.text.data(), reason.message().data(), message.textLength);
  for (int rank = 0; rank < static_cast<int>(options_.members.size()); ++rank) {
    if (rank != rank_ && rank != lostRank) mailbox_.send(rank, message);
  }
}

void Group::endAll(const Status& reason) {
  const bool isFirst = failure_.isOk();
  if (isFirst) failure_ = reason;
  const auto end = [&](Operation& operation, const Status& status) {
    operation.complete(status);
    engine_.operationEnded();
  };
  std::vector<std::string> progressOfWaiting;  // it says for whom they wait
  for (const auto& operation : waiting_) progressOfWaiting.push_back(progressOf(*operation));
  comparisons_.clear();
  for (const auto& operation : std::exchange(running_, {})) {
    const std::string progress = progressOf(*operation);
    operation->execution->cancel(reason);
    release(*operation);
    end(*operation, explain(describe(*operation), operation->started, reason, progress));
  }
  auto progress = progressOfWaiting.begin();
  for (const auto& operation : std::exchange(waiting_, {})) {
    end(*operation, explain(describe(*operation), operation->started, reason, *progress++));
  }
  for (const auto& message : std::exchange(messages_, {})) {
    if (std::exchange(message->isPending, false)) engine_.messenger().cancel(*message, reason);
    end(*message, explain(describe(*message), message->started, reason, ""));
  }
  bytesInFlight_ = 0;
  if (isFirst) engine_.messenger().dropCommunicator(collectiveCommunicator());
}

std::string Group::describe(const CollectiveOperation& operation) const {
  return formatText("{}, operation {}", toString(operation.signature), operation.sequence);
}

std::string Group::describe(const MessageOperation& operation) const {
  const std::string rank = operation.rank == kAnyRank ? "any rank" : formatText("rank {}", operation.rank);
  return formatText("{}{} ({} bytes, tag {})", operation.isSend ? "send to " : "receive from ", rank,
                    operation.bytes.size(), operation.tag);
}

std::string Group::progressOf(const CollectiveOperation& operation) const {
  if (operation.execution) return " in " + operation.execution->progress();
  if (operation.readiness) return " before its input was there";
  const bool isBarrier = operation.call.collective == Collective::kBarrier;
  const auto holder = std::find_if(running_.begin(), running_.end(), [&](const CollectiveHandle& other) {
    return other->sequence < operation.sequence && (isBarrier || isComparison(other));
  });
  if (holder == running_.end()) return " before it started";
  return " before it started, " +
         (isComparison(*holder) ? "while the ranks exchanged host statistics: "
                                : "after " + describe(**holder) + ", in ") +
         (*holder)->execution->progress();
}

Status Group::explain(const std::string& operation, Clock::time_point started, const Status& reason,
                      const std::string& progress) const {
  // The reason first: it names who is to blame, and this rank is not.
  return Status(reason.code(), formatText("{}; rank {} of group '{}': {} failed after {}{}; the group is not usable "
                                          "any more: destroy it and create it again",
                                          reason.message(), rank_, options_.name, operation,
                                          seconds(Clock::now() - started), progress));
}

// --- waiting and agreement ----------------------------------------------------------------------------------------

Clock::time_point Group::tick(Clock::time_point now) {
  auto next = Clock::time_point::max();
  const auto checkDeadline = [&](const auto& operation) {
    next = std::min(next, operation->deadline);
    if (now < operation->deadline) return false;
    fail(resourceExhausted(describe(*operation) + " did not end within " +
                           seconds(operation->deadline - operation->started) + progressOf(*operation)));
    return true;
  };
  for (const auto& operation : running_) {
    if (checkDeadline(operation)) return Clock::time_point::max();
    if (operation->hasAsked) continue;
    if (now >= operation->started + kMismatchCheckAfter) sendCallHistory(*operation);
    if (!operation->hasAsked) next = std::min(next, operation->started + kMismatchCheckAfter);
  }
  for (const auto& operation : waiting_) {
    if (checkDeadline(operation)) return Clock::time_point::max();
  }
  for (const auto& message : messages_) {
    if (checkDeadline(message)) return Clock::time_point::max();
  }
  for (size_t i = 0; i < messages_.size();) {
    const std::shared_ptr<MessageOperation> message = messages_[i];
    if (message->rank == kAnyRank) {
      findSource(*message);
    } else if (message->readiness) {
      startMessage(*message);
    }
    if (i < messages_.size() && messages_[i] == message) ++i;  // else it has ended
  }
  startWaiting();
  return next;
}

void Group::sendCallHistory(CollectiveOperation& operation) {
  operation.hasAsked = true;
  ControlMessage message;
  for (size_t i = 0; i < ControlMessage::kNumEntries && i < operation.sequence; ++i) {
    const uint64_t sequence = operation.sequence - i;
    const HistoryEntry& entry = history_[sequence % kHistory];
    if (entry.sequence == sequence) message.history[i] = entry;
  }
  for (const int rank : operation.execution->awaitedRanks()) mailbox_.send(rank, message);
}

void Group::remember(const CollectiveOperation& operation) {
  history_[operation.sequence % kHistory] = {operation.sequence, operation.chain, operation.signature};
}

void Group::controlMessageArrived(int rank, const ControlMessage& message) {
  if (!failure_) return;
  if (message.kind == ControlKind::kFailed) {
    const bool isMismatch = message.code == static_cast<uint32_t>(StatusCode::kInvalidArgument);
    const std::string sender = formatText("rank {}", rank), text(message.reason());
    return endAll(Status(isMismatch ? StatusCode::kInvalidArgument : StatusCode::kUnavailable,
                         message.lostRank >= 0 ? text + " (as " + sender + " says)" : sender + " gave up: " + text));
  }
  if (const auto difference = findDifference(rank, message)) return fail(invalidArgument(*difference));
  if (message.history[0].sequence > sequence_) questions_[rank] = message;
}

std::optional<std::string> Group::findDifference(int rank, const ControlMessage& message) const {
  const HistoryEntry* theirs = nullptr;
  for (const HistoryEntry& entry : message.history) {
    const HistoryEntry& own = history_[entry.sequence % kHistory];
    const bool differs = entry.sequence != 0 && own.sequence == entry.sequence && own.chain != entry.chain;
    if (differs && (!theirs || entry.sequence < theirs->sequence)) theirs = &entry;
  }
  if (!theirs) return std::nullopt;
  const CallSignature& own = history_[theirs->sequence % kHistory].signature;
  std::string ownText = toString(own), theirText = toString(theirs->signature);
  if (own == theirs->signature) {
    ownText = theirText = "calls that differ before it";
  } else if (ownText == theirText) {
    const auto detail = [](const CallSignature& signature) {
      return formatText(" with plan {}, algorithm {}, segments of {} bytes, sizes {}", signature.planVersion,
                        algorithms()[signature.algorithm % algorithms().size()].name, signature.segmentBytes,
                        signature.layout % 10000);
    };
    ownText += detail(own);
    theirText += detail(theirs->signature);
  }
  return formatText(
      "the ranks' calls differ: as operation {} of group '{}' rank {} called {} and rank {} called {}; all ranks must "
      "make the same calls in the same order",
      theirs->sequence, options_.name, rank_, ownText, rank, theirText);
}

}  // namespace agspeed::comm
