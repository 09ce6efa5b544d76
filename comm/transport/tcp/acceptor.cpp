// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/tcp/acceptor.h"

#include <sys/epoll.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "runtime/base/log.h"

namespace agspeed::comm::tcp {
namespace {

/// Places for handshakes, at least: of all rails, and of each; every rank of the job has one, since all may come at
/// once.
constexpr size_t kMinPlaces = 64, kMinPlacesOfRail = 4;
constexpr int kMaxAcceptsAtOnce = 16;
constexpr std::chrono::milliseconds kGreetingTimeout{3000};
constexpr std::chrono::milliseconds kLookInterval{40};
/// Enough to recognise a stranger by.
constexpr size_t kMagicBytes = 6;

}  // namespace

Acceptor::Acceptor(Poller& poller, Socket listener, size_t numRails, Directory& directory, Owner& owner)
    : poller_(poller),
      listener_(std::move(listener)),
      directory_(directory),
      owner_(owner),
      numPlaces_(std::max({kMinPlaces / numRails, kMinPlacesOfRail, static_cast<size_t>(directory.options().size)})),
      listening_(poller, listener_.descriptor(), *this) {}

Acceptor::Pending::Pending(Acceptor& owner, Socket connection)
    : acceptor(owner), socket(std::move(connection)), pollId(owner.poller_.add(socket.descriptor(), EPOLLIN, *this)) {}

Acceptor::Pending::~Pending() {
  if (socket.isOpen()) acceptor.poller_.remove(pollId, socket.descriptor());
}

void Acceptor::ready(uint32_t) {
  for (int i = 0; i < kMaxAcceptsAtOnce; ++i) {
    std::optional<Socket> socket = listener_.accept();
    if (!socket) return listening_.failed(errno);
    if (pending_.size() >= numPlaces_) refuse(pending_.begin());
    pending_.emplace_back(*this, std::move(*socket));
    pending_.back().self = std::prev(pending_.end());
  }
}

Clock::time_point Acceptor::expire(Clock::time_point now) {
  listening_.resume();
  const Clock::duration looked = active_.look(now);
  for (Pending& pending : pending_) pending.waited += looked;
  while (!pending_.empty() && pending_.front().waited > kGreetingTimeout) refuse(pending_.begin());
  Clock::time_point next = pending_.empty() ? Clock::time_point::max() : now + kLookInterval;
  for (auto at = pending_.begin(); at != pending_.end();) {
    Pending& pending = *at++;
    if (pending.responder || pending.size < kRequestBytes) continue;
    const Verdict verdict = answer(pending);
    if (verdict == Verdict::kWait && !pending.responder) next = std::min(next, directory_.askAgainAt(pending.peer));
    finish(pending, verdict);
  }
  return next;
}

void Acceptor::Pending::ready(uint32_t) { acceptor.finish(*this, acceptor.read(*this)); }

Acceptor::Verdict Acceptor::read(Pending& pending) {
  // Not one byte beyond the handshake is read: what follows are frames.
  const size_t wanted = pending.responder ? kConfirmBytes : kRequestBytes;
  const iovec part = {pending.bytes.data() + pending.size, wanted - pending.size};
  const Moved moved = pending.socket.read(std::span(&part, 1));
  if (!moved.isOpen) return Verdict::kRefuse;
  pending.size += moved.numBytes;
  if (!pending.responder && pending.size >= kMagicBytes && !readClaim(pending.bytes)) return Verdict::kRefuse;
  if (pending.size < wanted) return Verdict::kWait;
  if (!pending.responder) return answer(pending);
  return pending.responder->isConfirmedBy(std::span(pending.bytes).first<kConfirmBytes>()) ? Verdict::kAccept
                                                                                           : Verdict::kRefuse;
}

Acceptor::Verdict Acceptor::answer(Pending& pending) {
  Admission admission = admit(pending.bytes, directory_);
  pending.peer = admission.peer;
  if (admission.verdict != Admission::Verdict::kAnswer) {
    return admission.verdict == Admission::Verdict::kWait ? Verdict::kWait : Verdict::kRefuse;
  }
  pending.responder = std::move(admission.responder);
  pending.size = 0;
  const iovec part = {const_cast<std::byte*>(pending.responder->reply().data()), kReplyBytes};
  return pending.socket.write(std::span(&part, 1)).numBytes == kReplyBytes ? Verdict::kWait : Verdict::kRefuse;
}

void Acceptor::refuse(std::list<Pending>::iterator pending) {
  pending_.erase(pending);
  // Strangers may come by the thousand: the log gets the 1st, 2nd, 4th, 8th, ...
  if (!std::has_single_bit(++numRefused_)) return;
  AG_LOG(kInfo, "rank {} refused a connection that does not prove to be one of this job ({} so far)",
         directory_.options().rank, numRefused_);
}

void Acceptor::finish(Pending& pending, Verdict verdict) {
  if (verdict == Verdict::kWait) return;
  if (verdict == Verdict::kRefuse) return refuse(pending.self);
  poller_.remove(pending.pollId, pending.socket.descriptor());
  Socket socket = std::move(pending.socket);
  const int peer = pending.peer;
  Opener opener(directory_.options().protection, pending.responder->frameKey());
  pending_.erase(pending.self);
  socket.prepare();
  owner_.accepted(peer, std::move(socket), std::move(opener));
}

}  // namespace agspeed::comm::tcp
