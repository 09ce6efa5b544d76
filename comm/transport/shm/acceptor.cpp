// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/shm/acceptor.h"

#include <sys/epoll.h>

#include <array>
#include <bit>
#include <cerrno>
#include <iterator>
#include <string>
#include <utility>

#include "comm/transport/shm/ring.h"
#include "runtime/base/log.h"

namespace agspeed::comm::shm {
namespace {

/// Beside one for each rank.
constexpr size_t kMaxStrangers = 64;
constexpr int kMaxAcceptsAtOnce = 16;
/// A rank of an overloaded host may take long from one message to the next.
constexpr std::chrono::seconds kGreetingTimeout{10};
constexpr size_t kHandedOver = 3;  ///< ring, page, bell

}  // namespace

Greeter::Greeter(Poller& poller, FileDescriptor listener, Directory& directory, const Doorbell& bell, Owner& owner)
    : poller_(poller),
      listener_(std::move(listener)),
      directory_(directory),
      bell_(bell),
      owner_(owner),
      listening_(poller, listener_.get(), *this) {}

Greeter::Pending::Pending(Greeter& owner, FileDescriptor connection, Process from)
    : greeter(owner),
      socket(std::move(connection)),
      process(from),
      pollId(owner.poller_.add(socket.get(), EPOLLIN, *this)) {}

Greeter::Pending::~Pending() {
  if (socket.isOpen()) greeter.poller_.remove(pollId, socket.get());
}

void Greeter::ready(uint32_t) {
  for (int i = 0; i < kMaxAcceptsAtOnce; ++i) {
    FileDescriptor socket = acceptAt(listener_);
    if (!socket.isOpen()) return listening_.failed(errno);
    const std::optional<Process> process = trustedProcessAt(socket);
    if (!process) continue;
    if (pending_.size() >= kMaxStrangers + static_cast<size_t>(directory_.options().size)) pending_.pop_front();
    pending_.emplace_back(*this, std::move(socket), *process);
    pending_.back().self = std::prev(pending_.end());
  }
}

void Greeter::readAll() {
  for (auto next = pending_.begin(); next != pending_.end();) {
    Pending& pending = *next++;
    finish(pending, read(pending));
  }
}

void Greeter::expire(Clock::duration looked) {
  listening_.resume();
  for (Pending& pending : pending_) pending.waited += looked;
  while (!pending_.empty() && pending_.front().waited > kGreetingTimeout) pending_.pop_front();
  for (auto next = pending_.begin(); next != pending_.end();) {
    Pending& pending = *next++;
    if (!pending.responder && pending.request) finish(pending, answer(pending));
  }
}

void Greeter::Pending::ready(uint32_t) { greeter.finish(*this, greeter.read(*this)); }

Greeter::Verdict Greeter::read(Pending& pending) {
  if (pending.responder) {
    ConfirmBytes confirm;
    const Received received = receiveMessage(pending.socket, confirm);
    if (received.outcome == Received::Outcome::kNothingYet) return Verdict::kWait;
    const bool isProven = received.outcome == Received::Outcome::kMessage && pending.responder->isConfirmedBy(confirm);
    return isProven ? Verdict::kAccept : Verdict::kRefuse;
  }
  RequestBytes request;
  Received received = receiveMessage(pending.socket, request);
  if (received.outcome == Received::Outcome::kNothingYet) return Verdict::kWait;
  const bool isFirst = received.outcome == Received::Outcome::kMessage && !pending.request;
  if (!isFirst || received.descriptors.size() != kHandedOver) return Verdict::kRefuse;
  pending.request = request;
  pending.handedOver = std::move(received.descriptors);
  return answer(pending);
}

Greeter::Verdict Greeter::answer(Pending& pending) {
  Admission admission = admit(*pending.request, directory_);
  if (admission.verdict != Admission::Verdict::kAnswer) {
    return admission.verdict == Admission::Verdict::kWait ? Verdict::kWait : Verdict::kRefuse;
  }
  pending.peer = admission.peer;
  pending.responder = std::move(admission.responder);
  const std::array own = {bell_.page(), bell_.bell()};
  return sendMessage(pending.socket, pending.responder->reply(), own) ? Verdict::kWait : Verdict::kRefuse;
}

void Greeter::finish(Pending& pending, Verdict verdict) {
  if (verdict == Verdict::kWait) return;
  if (verdict == Verdict::kRefuse) return refuse(pending, "it does not prove to be one of this job");
  StatusOr<SharedMemory> ring = SharedMemory::open(pending.handedOver[0], sizeof(Ring));
  if (!ring) return refuse(pending, ring.status().message());
  StatusOr<Doorbell> bell = Doorbell::open(pending.handedOver[1], std::move(pending.handedOver[2]));
  if (!bell) return refuse(pending, bell.status().message());
  poller_.remove(pending.pollId, pending.socket.get());
  AcceptedConnection arrival = {std::move(pending.socket), pending.process, std::move(*ring), std::move(*bell)};
  const int peer = pending.peer;
  pending_.erase(pending.self);
  owner_.accepted(peer, std::move(arrival));
}

void Greeter::refuse(Pending& pending, const std::string& why) {
  pending_.erase(pending.self);
  // As strangers over the network: the log gets the 1st, 2nd, 4th, 8th, ...
  if (!std::has_single_bit(++numRefused_)) return;
  AG_LOG(kInfo, "rank {} refused a connection through shared memory ({} so far): {}", directory_.options().rank,
         numRefused_, why);
}

}  // namespace agspeed::comm::shm
