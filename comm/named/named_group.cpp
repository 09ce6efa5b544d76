// SPDX-License-Identifier: Apache-2.0
#include "comm/named/named_group.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/base/format.h"
#include "runtime/base/log.h"

namespace agspeed::comm {
namespace {

/// Responses whose data moves; further ones wait, and are fused.
constexpr size_t kMaxRunning = 2;
/// How long a rank waits for others before it looks whether they are alive.
constexpr std::chrono::milliseconds kWatchAfter{100};
constexpr std::chrono::microseconds kReadinessInterval{50};
constexpr size_t kMaxStalledNames = 6;

constexpr const char* kShutDown =
    "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, "
    "allgather or broadcast a tensor after one of the ranks finished execution.";
constexpr const char* kDuplicateName =
    "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor that is currently "
    "being processed. If you want to request another tensor, use a different tensor name.";

}  // namespace

StatusOr<std::unique_ptr<NamedGroup>> NamedGroup::create(Engine& engine, NamedOptions options) {
  if (options.group.members.empty()) {
    options.group.members.resize(static_cast<size_t>(engine.messenger().size()));
    std::iota(options.group.members.begin(), options.group.members.end(), 0);
  }
  AG_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator, Communicator::create(engine, options.group));
  return std::unique_ptr<NamedGroup>(new NamedGroup(engine, std::move(options), std::move(communicator)));
}

NamedGroup::NamedGroup(Engine& engine, NamedOptions options, std::unique_ptr<Communicator> communicator)
    : engine_(engine),
      options_(std::move(options)),
      communicator_(std::move(communicator)),
      stream_(engine, *this, options_.group.members, 2 * options_.messageId) {
  engine_.runOnDriver([this] {
    if (rank() == 0) coordinator_.emplace(size(), options_.cacheCapacity);
    ResponseListener& listener = *this;
    runner_ = std::make_unique<ResponseRunner>(engine_, *communicator_, listener);
    engine_.addClient(*this);
    std::vector<int> heard(isCoordinator() ? static_cast<size_t>(size() - 1) : 1);
    std::iota(heard.begin(), heard.end(), isCoordinator() ? 1 : 0);
    stream_.open(heard);
  });
}

NamedGroup::~NamedGroup() {
  const Status reason = unavailable(kShutDown);
  engine_.runOnDriver([&] {
    endAll(reason);
    runner_->cancel(reason);
  });
  // Ends what the runner has started.
  const std::unique_ptr<Communicator> ended = std::move(communicator_);
  engine_.runOnDriver([&] { stream_.close(); });
  engine_.runOnDriver([this] {
    engine_.removeClient(*this);
    engine_.removeWork(*this);
  });
}

StatusOr<NamedHandle> NamedGroup::start(NamedCall call) {
  auto operation = std::make_shared<NamedOperation>(engine_, std::move(call));
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) return failure_;
    if (!names_.insert(operation->call.request.name).second) {
      return invalidArgument("{} The name is '{}', at rank {}.", kDuplicateName, operation->call.request.name, rank());
    }
  }
  engine_.operationStarted();
  engine_.enqueue([this, operation] { submit(operation); });
  engine_.kick();
  return operation;
}

void NamedGroup::shutdown() {
  engine_.runOnDriver([this] {
    if (!failure_) return;
    const Status reason = unavailable("{} Rank {} has called shutdown().", kShutDown, rank());
    tellOthers({false, reason.message()});
    endAll(reason);
  });
}

Status NamedGroup::health() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

// --- what this rank asks for

void NamedGroup::submit(const NamedHandle& operation) {
  if (!failure_) return end(operation, failure_);
  if (operation->call.readiness) {
    unready_.push_back(operation);
    return checkReadiness();
  }
  request(operation);
}

void NamedGroup::checkReadiness() {
  std::vector<NamedHandle> ready;
  Status failure;
  std::erase_if(unready_, [&](const NamedHandle& operation) {
    const StatusOr<bool> isReady = operation->call.readiness();
    if (!isReady) failure = isReady.status();
    if (isReady && *isReady) ready.push_back(operation);
    return isReady && *isReady;
  });
  for (const NamedHandle& operation : ready) request(operation);
  if (!failure) return fail(failure);
  if (!unready_.empty()) engine_.tickBy(Clock::now() + kReadinessInterval);
}

void NamedGroup::request(const NamedHandle& operation) {
  const Request& wanted = operation->call.request;
  const auto now = Clock::now();
  if (pending_.empty()) waitingSince_ = now;
  pending_[wanted.name] = operation;
  engine_.tickBy(now + kWatchAfter);
  const auto cached = ids_.find(wanted.name);
  const bool isCached = cached != ids_.end() && cached->second.request == wanted;
  const Note note = isCached ? Note(CachedRequest{cached->second.id}) : Note(wanted);
  isCoordinator() ? hear(0, note) : encode(note, requested_);
  workSoon();
}

void NamedGroup::workSoon() {
  if (!std::exchange(hasWork_, true)) engine_.addWork(*this, 0, INT32_MIN);
}

void NamedGroup::work(uint64_t) {
  hasWork_ = false;
  if (isCoordinator()) return respond();
  stream_.send(0, std::exchange(requested_, {}));
}

// --- the coordinator

void NamedGroup::messageArrived(int rank, std::span<const std::byte> message) {
  const StatusOr<std::vector<Note>> notes = decode(message);
  if (!notes) return fail(notes.status().withContext(formatText("rank {} sent what it should not", rank)));
  for (const Note& note : *notes) isCoordinator() ? hear(rank, note) : follow(note);
  if (isCoordinator()) workSoon();
}

void NamedGroup::hear(int rank, const Note& note) {
  if (!failure_) return;
  const auto now = Clock::now();
  if (const auto* wanted = std::get_if<Request>(&note)) {
    coordinator_->add(rank, *wanted, now);
  } else if (const auto* cached = std::get_if<CachedRequest>(&note)) {
    if (const Status status = coordinator_->addCached(rank, cached->id, now); !status) fail(status);
  } else if (const auto* farewell = std::get_if<Farewell>(&note)) {
    tellOthers(*farewell);
    follow(note);
  }
  engine_.tickBy(now + kWatchAfter);
}

void NamedGroup::respond() {
  Bytes message;
  std::vector<Response> responses;
  while (failure_ && coordinator_->readyBytes() > 0 &&
         (numRunning_ + responses.size() < kMaxRunning || coordinator_->readyBytes() >= options_.fusionBytes)) {
    responses.push_back(coordinator_->next(options_.fusionBytes));
    encode(responses.back(), message);
  }
  if (responses.empty()) return;
  for (int rank = 1; rank < size(); ++rank) stream_.send(rank, message);
  for (const Response& response : responses) follow(response);
  if (numRunning_ < kMaxRunning && coordinator_->readyBytes() > 0) workSoon();  // some of them moved no data
}

// --- what all ranks do

void NamedGroup::follow(const Note& note) {
  if (!failure_) return;
  if (const auto* response = std::get_if<Response>(&note)) {
    follow(*response);
  } else if (const auto* farewell = std::get_if<Farewell>(&note)) {
    const Status reason(StatusCode::kUnavailable, farewell->reason);
    endAll(reason);
    // What all ranks have begun, they end, unless one cannot.
    if (farewell->isFailure) runner_->cancel(reason);
  }
}

void NamedGroup::follow(const Response& response) {
  waitingSince_ = Clock::now();
  if (!response.error.empty()) {
    for (const Response::Item& item : response.items) {
      if (const NamedHandle own = takePending(item.agreement.request.name)) {
        end(own, invalidArgument(std::string(response.error)));
      }
    }
  } else if (response.kind == NamedKind::kJoin) {
    for (const auto& [name, operation] : std::unordered_map(pending_)) {
      if (operation->call.request.kind != NamedKind::kJoin) continue;
      operation->lastJoined_ = response.lastJoined;
      end(takePending(name), {});
    }
  } else {
    run(response);
  }
  if (pending_.empty()) stream_.unwatchAll();
}

void NamedGroup::run(const Response& response) {
  std::vector<Agreement> agreements;
  std::vector<NamedHandle> operations;
  for (const Response::Item& item : response.items) {
    if (!item.isFull && (item.cacheId == 0 || item.cacheId > agreements_.size())) {
      return fail(dataLoss("rank {} does not know request {}, which its coordinator refers to", rank(), item.cacheId));
    }
    agreements.push_back(item.isFull ? item.agreement : agreements_[item.cacheId - 1]);
    operations.push_back(takePending(agreements.back().request.name));
    learn(item, operations.back());
    if (operations.back() == nullptr && response.kind != NamedKind::kAllReduce) {
      return fail(
          dataLoss("rank {} is told to run '{}', which it has not started", rank(), agreements.back().request.name));
    }
  }
  ++numRunning_;
  runner_->run(std::move(agreements), std::move(operations));
}

void NamedGroup::learn(const Response::Item& item, const NamedHandle& own) {
  if (item.cacheId == 0) return;
  if (item.isFull) {
    if (agreements_.size() < item.cacheId) agreements_.resize(item.cacheId);
    agreements_[item.cacheId - 1] = item.agreement;
  }
  if (own != nullptr) ids_[own->call.request.name] = {item.cacheId, own->call.request};
}

void NamedGroup::responseEnded(const std::vector<NamedHandle>& operations, const Status& status) {
  --numRunning_;
  for (const NamedHandle& operation : operations) {
    if (operation != nullptr) end(operation, status);
  }
  if (!status && failure_) return fail(status);
  if (isCoordinator()) workSoon();
}

// --- ending

NamedHandle NamedGroup::takePending(const std::string& name) {
  const auto found = pending_.find(name);
  if (found == pending_.end()) return nullptr;
  const NamedHandle operation = std::move(found->second);
  pending_.erase(found);
  return operation;
}

void NamedGroup::end(const NamedHandle& operation, const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    names_.erase(operation->call.request.name);
  }
  operation->complete(status);
  engine_.operationEnded();
}

void NamedGroup::fail(const Status& reason) {
  if (!failure_) return;
  tellOthers({true, reason.message()});
  endAll(reason);
  runner_->cancel(reason);
}

void NamedGroup::tellOthers(const Farewell& farewell) {
  Bytes message;
  encode(farewell, message);
  if (!isCoordinator()) return stream_.send(0, message);
  for (int rank = 1; rank < size(); ++rank) stream_.send(rank, message);
}

void NamedGroup::endAll(const Status& reason) {
  if (!failure_) return;
  {
    const std::lock_guard lock(mutex_);
    failure_ = reason;
  }
  stream_.unwatchAll();
  for (const NamedHandle& operation : std::exchange(unready_, {})) end(operation, reason);
  for (const auto& [name, operation] : std::exchange(pending_, {})) end(operation, reason);
}

void NamedGroup::peerFailed(int rank, const Status& status) {
  const int member = options_.group.members[static_cast<size_t>(rank)];
  fail(unavailable("rank {} is lost: {}", member, status.message()));
}

// --- waiting

Clock::time_point NamedGroup::tick(Clock::time_point now) {
  if (!failure_) return Clock::time_point::max();
  if (!unready_.empty()) checkReadiness();
  if (isCoordinator()) {
    const auto next = watchAwaited(now) ? now + kWatchAfter : Clock::time_point::max();
    return std::min(next, checkStalled(now));
  }
  if (pending_.empty()) return Clock::time_point::max();
  if (now >= waitingSince_ + kWatchAfter) stream_.watch(0);
  return std::max(now, waitingSince_) + kWatchAfter;
}

bool NamedGroup::watchAwaited(Clock::time_point now) {
  std::vector<int> awaited = coordinator_->unjoined();
  const std::vector<Coordinator::Stalled> waiting = coordinator_->stalled(now);
  for (const Coordinator::Stalled& each : waiting) {
    if (each.since + kWatchAfter <= now) awaited.insert(awaited.end(), each.missing.begin(), each.missing.end());
  }
  for (const int rank : awaited) {
    if (rank != 0) stream_.watch(rank);
  }
  return !awaited.empty() || !waiting.empty();
}

Clock::time_point NamedGroup::checkStalled(Clock::time_point now) {
  const auto warning = options_.stallWarning;
  if (warning <= Clock::duration::zero()) return Clock::time_point::max();
  if (now < nextStallWarning_) return nextStallWarning_;
  const std::vector<Coordinator::Stalled> all = coordinator_->stalled(now - warning);
  if (all.empty()) {
    const std::vector<Coordinator::Stalled> younger = coordinator_->stalled(now);
    return younger.empty() ? Clock::time_point::max() : younger[0].since + warning;
  }
  std::vector<std::string> names(static_cast<size_t>(size()));
  std::vector<size_t> counts(static_cast<size_t>(size()), 0);
  for (const Coordinator::Stalled& stalled : all) {
    for (const int rank : stalled.missing) {
      const auto at = static_cast<size_t>(rank);
      if (++counts[at] > kMaxStalledNames) continue;
      names[at] += (counts[at] > 1 ? ", " : "") + stalled.name;
    }
  }
  std::string missing;
  for (size_t rank = 0; rank < names.size(); ++rank) {
    if (counts[rank] == 0) continue;
    missing += formatText(" {}: [{}{}]", options_.group.members[rank], names[rank],
                          counts[rank] > kMaxStalledNames ? ", ..." : "");
  }
  const std::string text = formatText(
      "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting "
      "for "
      "remainder of ranks for more than {:g} seconds. This may indicate that different ranks are trying to submit "
      "different tensors or that only subset of ranks is submitting tensors, which will cause deadlock. Missing "
      "ranks:{}",
      std::chrono::duration<double>(warning).count(), missing);
  AG_LOG(kWarn, "{}", text);
  const auto limit = options_.stallShutdown;
  if (limit > Clock::duration::zero() && now - all[0].since >= limit) fail(resourceExhausted(std::string(text)));
  nextStallWarning_ = now + warning;
  return nextStallWarning_;
}

}  // namespace agspeed::comm
