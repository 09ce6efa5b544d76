// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/handshake_server.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "runtime/base/log.h"

namespace agspeed::comm {
namespace {

/// The least number of places on all network rails together and on each of them, and the places beyond one per rank on
/// this host.
constexpr size_t kMinPlaces = 64, kMinPlacesOfRail = 4, kSparePlacesOfHost = 64;
constexpr std::chrono::seconds kNetworkDeadline{3};
/// A rank on an overloaded host may take long between two messages.
constexpr std::chrono::seconds kLocalDeadline{10};
constexpr std::chrono::milliseconds kCheckInterval{40};
/// This many bytes show whether a connection begins with a request.
constexpr size_t kMagicBytes = 6;

constexpr std::string_view kUnproven = "it does not prove to be one of this job";

}  // namespace

HandshakeServer::Limits HandshakeServer::networkLimits(size_t numRails, size_t numRanks) {
  return {std::max({kMinPlaces / numRails, kMinPlacesOfRail, numRanks}), kNetworkDeadline};
}

HandshakeServer::Limits HandshakeServer::localLimits(size_t numRanks) {
  return {kSparePlacesOfHost + numRanks, kLocalDeadline};
}

void HandshakeServer::add(std::unique_ptr<Connection> connection) {
  if (pending_.size() >= limits_.numPlaces) refuse(pending_.begin(), "too many others came after it");
  pending_.push_back(std::move(connection));
  pending_.back()->self_ = std::prev(pending_.end());
}

void HandshakeServer::read(Connection& connection) { finish(connection, advance(connection)); }

void HandshakeServer::readAll() {
  for (auto at = pending_.begin(); at != pending_.end();) read(**at++);
}

Clock::time_point HandshakeServer::expire(Clock::time_point now) {
  const Clock::duration looked = active_.look(now);
  for (const auto& connection : pending_) connection->waited_ += looked;
  while (!pending_.empty() && pending_.front()->waited_ > limits_.deadline) {
    refuse(pending_.begin(), "it has not proven itself in time");
  }
  Clock::time_point next = pending_.empty() ? Clock::time_point::max() : now + kCheckInterval;
  for (auto at = pending_.begin(); at != pending_.end();) {
    Connection& connection = **at++;
    if (!connection.isRequestWhole()) continue;
    const Verdict verdict = answer(connection);
    if (verdict == Verdict::kWait && !connection.responder_) {
      next = std::min(next, directory_.askAgainAt(connection.peer_));
    }
    finish(connection, verdict);
  }
  return next;
}

HandshakeServer::Verdict HandshakeServer::advance(Connection& connection) {
  // Never read beyond the handshake: frames follow it, and a peer sends nothing after its request before the reply.
  const size_t wanted = connection.responder_ ? kConfirmBytes : kRequestBytes;
  const std::span<std::byte> missing = std::span(connection.bytes_).first(wanted).subspan(connection.size_);
  const std::optional<size_t> numRead = connection.read(missing);
  if (!numRead) return Verdict::kRefuse;
  connection.size_ += *numRead;
  if (!connection.responder_ && connection.size_ >= kMagicBytes && !readClaim(connection.bytes_)) {
    return Verdict::kRefuse;
  }
  if (*numRead == 0 || connection.size_ < wanted) return Verdict::kWait;
  if (!connection.responder_) return answer(connection);
  const bool isProven = connection.responder_->isConfirmedBy(std::span(connection.bytes_).first<kConfirmBytes>());
  return isProven ? Verdict::kAccept : Verdict::kRefuse;
}

HandshakeServer::Verdict HandshakeServer::answer(Connection& connection) {
  Admission admission = admit(connection.bytes_, directory_);
  connection.peer_ = admission.peer;
  if (admission.verdict == Admission::Verdict::kWait) return Verdict::kWait;
  if (admission.verdict == Admission::Verdict::kRefuse) return Verdict::kRefuse;
  connection.responder_ = std::move(admission.responder);
  connection.size_ = 0;
  return connection.reply(connection.responder_->reply()) ? Verdict::kWait : Verdict::kRefuse;
}

void HandshakeServer::finish(Connection& connection, Verdict verdict) {
  if (verdict == Verdict::kWait) return;
  if (verdict == Verdict::kRefuse) return refuse(connection.self_, kUnproven);
  const std::unique_ptr<Connection> proven = std::move(*connection.self_);
  pending_.erase(proven->self_);
  const Status status = proven->accept(proven->peer_, *proven->responder_);
  if (!status) countRefused(status.message());
}

void HandshakeServer::refuse(Pending::iterator connection, std::string_view why) {
  pending_.erase(connection);
  countRefused(why);
}

void HandshakeServer::countRefused(std::string_view why) {
  // There may be thousands of refusals: the log gets the 1st, 2nd, 4th, 8th, ...
  if (!std::has_single_bit(++numRefused_)) return;
  AG_LOG(kInfo, "rank {} refused {} ({} so far): {}", directory_.options().rank, kind_, numRefused_, why);
}

}  // namespace agspeed::comm
