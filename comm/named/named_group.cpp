// SPDX-License-Identifier: Apache-2.0
#include "comm/named/named_group.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/base/format.h"

namespace agspeed::comm::named {
namespace {

constexpr std::chrono::microseconds kReadinessInterval{50};
/// After waiting for other ranks for this time, a rank begins to check that they are alive.
constexpr std::chrono::milliseconds kWatchAfter{100};
/// How often the coordinator scans all waiting operations. There may be thousands, and the scan delays the driver.
constexpr std::chrono::milliseconds kStallCheckInterval{50};

constexpr const char* kShutDown =
    "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, "
    "allgather or broadcast a tensor after one of the ranks finished execution.";

}  // namespace

StatusOr<std::unique_ptr<NamedGroup>> NamedGroup::create(engine::Engine& engine, NamedOptions options) {
  if (options.group.members.empty()) {
    options.group.members.resize(static_cast<size_t>(engine.messenger().size()));
    std::iota(options.group.members.begin(), options.group.members.end(), 0);
  }
  AG_ASSIGN_OR_RETURN(auto communicator, collective::Communicator::create(engine, options.group));
  return std::unique_ptr<NamedGroup>(new NamedGroup(engine, std::move(options), std::move(communicator)));
}

NamedGroup::NamedGroup(engine::Engine& engine, NamedOptions options, std::unique_ptr<collective::Communicator> group)
    : engine_(engine),
      options_(std::move(options)),
      communicator_(std::move(group)),
      stream_(engine, *this, options_.group.members, 2 * options_.messageId),
      stalls_(options_.stallWarning, options_.stallShutdown, options_.group.members) {
  engine_.runOnDriver([this] {
    if (rank() == 0) coordinator_.emplace(size(), options_.cacheCapacity, options_.plan);
    ResponseListener& listener = *this;
    runner_ = std::make_unique<ResponseRunner>(engine_, *communicator_, listener);
    engine_.addClient(*this);
    std::vector<int> peers(isCoordinator() ? static_cast<size_t>(size() - 1) : 1);
    std::iota(peers.begin(), peers.end(), isCoordinator() ? 1 : 0);
    stream_.open(peers);
  });
}

NamedGroup::~NamedGroup() {
  const Status reason = unavailable(kShutDown);
  bool isIdle = true;
  engine_.runOnDriver([&] {
    if (!failure_) sendFarewell({false, reason.message()});
    isIdle = runner_->isIdle();
    endAll(reason);
    runner_->cancel(reason);
  });
  if (!isIdle) communicator_->abort(reason.message());  // other ranks may run operations that this rank never starts
  communicator_->close();                               // completes the operations that still use buffers of the runner
  engine_.runOnDriver([&] {
    runner_->cancel(reason);
    stream_.close();
    engine_.removeClient(*this);
    engine_.removeWork(*this);
    runner_ = nullptr;  // destroyed on the driver, because it may have queued work
  });
}

StatusOr<NamedHandle> NamedGroup::start(NamedCall call) {
  NamedHandle operation = prepare(std::move(call));
  if (Status status = start(operation); !status.isOk()) return status;
  return operation;
}

Status NamedGroup::start(const NamedHandle& operation) {
  AG_ASSIGN_OR_RETURN(const bool isKickDue, startQuietly(operation));
  if (isKickDue) kick();
  return {};
}

StatusOr<bool> NamedGroup::startQuietly(const NamedHandle& operation) {
  const StartQueue::Added added = add(std::span(&operation, 1));
  if (!added.refused.empty()) return added.refused[0].reason;
  return added.isKickDue;
}

StartQueue::Added NamedGroup::add(std::span<const NamedHandle> operations) {
  for (const NamedHandle& operation : operations) {
    if (operation->isDone()) operation->restart();
  }
  StartQueue::Added added = queue_.add(operations, rank());
  for (const auto& [operation, reason] : added.refused) operation->complete(reason);
  if (added.isFirst) engine_.enqueueBy(added.takeBy, [this] { takeStarted(); });
  return added;
}

void NamedGroup::setPlan(coordinator::FusionPlan plan) {
  engine_.enqueue([this, plan] {
    if (isCoordinator()) coordinator_->setPlan(plan);
  });
}

void NamedGroup::setTimeline(std::shared_ptr<Timeline> timeline) {
  engine_.runOnDriver([&] {
    if (!isCoordinator()) return;
    runner_->setTimeline(timeline.get());
    timeline_ = std::move(timeline);
  });
}

NamedStats NamedGroup::stats() {
  NamedStats stats;
  engine_.runOnDriver([&] {
    static_cast<RunnerStats&>(stats) = runner_->stats();
    if (!isCoordinator()) return;
    stats.numCachedNames = coordinator_->ids().size();
    stats.planVersion = coordinator_->ready().plan().version;
  });
  return stats;
}

void NamedGroup::shutdown() {
  engine_.runOnDriver([this] {
    if (failure_) return;
    const Status reason = unavailable("{} Rank {} has called shutdown().", kShutDown, rank());
    sendFarewell({false, reason.message()});
    endAll(reason);
  });
}

// --- requests of this rank

void NamedGroup::takeStarted() {
  gatherUntil_ = io::Clock::now() + StartQueue::kGather;
  engine_.tickBy(gatherUntil_);
  queue_.take(taken_);
  engine_.operationStarted(static_cast<int>(taken_.size()));
  for (const NamedHandle& operation : taken_) submit(operation);
  taken_.clear();
}

void NamedGroup::submit(const NamedHandle& operation) {
  if (failure_) return end(std::span(&operation, 1), *failure_);
  if (operation->call().readiness) {
    unready_.push_back(operation);
    return checkReadiness();
  }
  request(operation);
}

void NamedGroup::checkReadiness() {
  std::vector<NamedHandle> ready;
  std::optional<Status> failure;
  std::erase_if(unready_, [&](const NamedHandle& operation) {
    const StatusOr<bool> isReady = operation->call().readiness();
    if (!isReady.hasValue()) failure = isReady.status();
    if (isReady.hasValue() && *isReady) ready.push_back(operation);
    return isReady.hasValue() && *isReady;
  });
  for (const NamedHandle& operation : ready) request(operation);
  if (failure) return fail(*failure);
  if (!unready_.empty()) engine_.tickBy(io::Clock::now() + kReadinessInterval);
}

void NamedGroup::request(const NamedHandle& operation) {
  if (pending_.isEmpty()) {
    waitingSince_ = io::Clock::now();
    engine_.tickBy(waitingSince_ + kWatchAfter);
  }
  if (const uint32_t id = pending_.add(operation)) {
    requestedIds_.push_back(id);
  } else {
    sendToCoordinator(operation->request());
  }
  workSoon();
}

void NamedGroup::sendToCoordinator(const Note& note) {
  flushIds();
  isCoordinator() ? handleRequest(0, note) : encode(note, requested_);
}

void NamedGroup::flushIds() {
  if (requestedIds_.empty()) return;
  const Note ids = CachedRequests{std::move(requestedIds_)};
  requestedIds_ = {};
  isCoordinator() ? handleRequest(0, ids) : encode(ids, requested_);
}

void NamedGroup::work(uint64_t) {
  hasWork_ = false;
  flushIds();
  if (isCoordinator()) return respond();
  stream_.send(0, std::exchange(requested_, {}));
}

// --- the coordinator

void NamedGroup::messageArrived(int rank, std::span<const std::byte> message) {
  const StatusOr<std::vector<Note>> notes = decode(message);
  if (!notes.hasValue()) return fail(notes.status().withContext(formatText("rank {} sent an invalid message", rank)));
  for (const Note& note : *notes) isCoordinator() ? handleRequest(rank, note) : handleResponse(note);
  if (isCoordinator()) workSoon();
}

void NamedGroup::handleRequest(int rank, const Note& note) {
  if (failure_) return;
  const auto now = io::Clock::now();
  Status status;
  if (const auto* wanted = std::get_if<Request>(&note)) {
    if (timeline_ != nullptr) timeline_->requested(rank, wanted);
    coordinator_->add(rank, *wanted, now);
  } else if (const auto* cached = std::get_if<CachedRequests>(&note)) {
    if (timeline_ != nullptr) {
      for (const uint32_t id : cached->ids) timeline_->requested(rank, coordinator_->ids().request(rank, id).get());
    }
    status = coordinator_->addCached(rank, cached->ids, now);
  } else if (const auto* forgotten = std::get_if<Forgotten>(&note)) {
    for (const uint32_t id : forgotten->ids) {
      if (status.isOk()) status = coordinator_->dropId(rank, id);
    }
  } else if (const auto* farewell = std::get_if<Farewell>(&note)) {
    sendFarewell(*farewell);
    handleResponse(note);
  }
  if (!status.isOk()) fail(status);
  engine_.tickBy(now + kWatchAfter);
}

void NamedGroup::respond() {
  if (failure_) return;
  Bytes message;
  std::vector<Response> responses;
  coordinator::RunningResponses running = running_;
  while (coordinator_->isResponseDue(running, io::Clock::now())) {
    const Response& next = responses.emplace_back(coordinator_->next());
    encode(next, message);
    if (next.error.empty() && !next.items.empty()) running.began(next.items[0].agreement->request);
  }
  engine_.tickBy(coordinator_->ready().heldUntil());
  if (responses.empty()) return;
  for (int rank = 1; rank < size(); ++rank) stream_.send(rank, message);
  for (const Response& response : responses) handleResponse(response);
  workSoon();  // a response without data ends at once, so the next one may be due
}

// --- responses of the coordinator, at every rank

void NamedGroup::handleResponse(const Note& note) {
  if (failure_) return;
  if (const auto* response = std::get_if<Response>(&note)) {
    handleResponse(*response);
  } else if (const auto* farewell = std::get_if<Farewell>(&note)) {
    const Status reason(StatusCode::kUnavailable, farewell->reason);
    endAll(reason);
    // Operations with a response run at all ranks. So they complete if a rank has left, but not if one failed.
    if (farewell->isFailure) runner_->cancel(reason);
  }
}

void NamedGroup::handleResponse(const Response& response) {
  waitingSince_ = io::Clock::now();
  if (timeline_ != nullptr) {
    timeline_->markCycle();
    for (const Response::Item& item : response.items) {
      if (const AgreementHandle agreed = pending_.agreementOf(item)) timeline_->negotiated(agreed->request.name);
    }
    if (timeline_->isFull()) engine_.callLater([timeline = timeline_] { timeline->flush(); });
  }
  if (!response.error.empty()) {
    for (const Response::Item& item : response.items) {
      if (const NamedHandle own = pending_.take(item.agreement->request.name)) {
        own->setKindsDifferent(response.areKindsDifferent);
        end(std::span(&own, 1), invalidArgument(std::string(response.error)));
      }
    }
  } else if (response.kind == NamedKind::kJoin) {
    const std::vector<NamedHandle> joins = pending_.takeAll(NamedKind::kJoin);
    for (const NamedHandle& each : joins) each->setLastJoined(response.lastJoined);
    end(joins, {});
  } else {
    run(response);
  }
  if (!response.evicted.empty()) {  // drop ids after the items, which may still have these ids
    pending_.dropIds(response.evicted);
    sendToCoordinator(Forgotten{response.evicted});
    workSoon();
  }
  if (pending_.isEmpty()) stream_.unwatchAll();
}

void NamedGroup::run(const Response& response) {
  std::vector<AgreementHandle> agreements;
  std::vector<NamedHandle> operations;
  agreements.reserve(response.items.size());
  operations.reserve(response.items.size());
  Status status;
  for (const Response::Item& item : response.items) {
    const bool isKnown = pending_.knows(item);
    const NamedHandle& own = operations.emplace_back(isKnown ? pending_.take(item) : nullptr);
    const bool isOwnEnough = own != nullptr && !agreements.empty();
    const AgreementHandle& agreed = agreements.emplace_back(isOwnEnough ? nullptr : pending_.agreementOf(item));
    if (!isKnown) {
      status = dataLoss("rank {} does not know request {}, to which its coordinator refers", rank(), item.id);
    } else if (own == nullptr && response.kind != NamedKind::kAllReduce) {
      status = dataLoss("rank {} got a response for '{}', which it has not started", rank(), agreed->request.name);
    }
  }
  if (!status.isOk()) return responseEnded(operations, status);
  running_.began(agreements[0]->request);
  runner_->run(std::move(agreements), std::move(operations));
}

void NamedGroup::responseMoved(const Request& first) {
  running_.ended(first);
  if (isCoordinator()) workSoon();
}

void NamedGroup::responseEnded(const std::vector<NamedHandle>& operations, const Status& status) {
  end(operations, status);
  if (!status.isOk() && !failure_) fail(status);
}

// --- ending

void NamedGroup::end(std::span<const NamedHandle> operations, const Status& status) {
  queue_.ended(operations);
  const auto now = io::Clock::now();
  int numEnded = 0;
  for (const NamedHandle& operation : operations) {
    if (operation == nullptr) continue;
    operation->complete(status, now);
    ++numEnded;
  }
  engine_.operationEnded(numEnded);
}

void NamedGroup::fail(const Status& reason) {
  if (failure_) return;
  sendFarewell({true, reason.message()});
  endAll(reason);
  runner_->cancel(reason);
}

void NamedGroup::sendFarewell(const Farewell& farewell) {
  Bytes message;
  encode(farewell, message);
  if (!isCoordinator()) return stream_.send(0, message);
  for (int rank = 1; rank < size(); ++rank) stream_.send(rank, message);
}

void NamedGroup::endAll(const Status& reason) {
  if (failure_) return;
  failure_ = reason;
  queue_.close(reason);
  stream_.unwatchAll();
  end(std::exchange(unready_, {}), reason);
  end(pending_.takeAll(), reason);
}

void NamedGroup::peerFailed(int rank, const Status& status) {
  fail(unavailable("rank {} is lost: {}", options_.group.members[static_cast<size_t>(rank)], status.message()));
}

// --- waiting

io::Clock::time_point NamedGroup::tick(io::Clock::time_point now) {
  if (failure_) return io::Clock::time_point::max();
  if (now < gatherUntil_) engine_.tickBy(gatherUntil_);
  if (!unready_.empty()) checkReadiness();
  if (isCoordinator()) {
    const io::Clock::time_point heldUntil = coordinator_->ready().heldUntil();
    if (now >= heldUntil) workSoon();
    const io::Clock::time_point next = now < heldUntil ? heldUntil : io::Clock::time_point::max();
    if (!coordinator_->isWaiting()) return next;
    if (now < nextStallCheck_) return std::min(next, nextStallCheck_);
    nextStallCheck_ = now + kStallCheckInterval;
    watchAwaited(now);
    const std::string reasonToEnd = stalls_.inspect(*coordinator_, now);
    if (!reasonToEnd.empty()) fail(resourceExhausted(std::string(reasonToEnd)));
    return std::min(next, nextStallCheck_);
  }
  if (pending_.isEmpty()) return io::Clock::time_point::max();
  if (now >= waitingSince_ + kWatchAfter) stream_.watch(0);
  return std::max(now, waitingSince_) + kWatchAfter;
}

void NamedGroup::watchAwaited(io::Clock::time_point now) {
  std::vector<int> awaited = coordinator_->unjoined();
  for (const coordinator::Coordinator::Stalled& each : coordinator_->stalled(now - kWatchAfter)) {
    awaited.insert(awaited.end(), each.missing.begin(), each.missing.end());
  }
  for (const int rank : awaited) {
    if (rank != 0) stream_.watch(rank);
  }
}

}  // namespace agspeed::comm::named
