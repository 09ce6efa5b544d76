// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/handshake_server.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "runtime/base/log.h"

namespace agspeed::comm::transport {
namespace {

/// kMinPlaces: the least number of places on all network rails together. kMinPlacesOfRail: the least number on each
/// rail. kSparePlacesOfHost: the places of the local listener in addition to one per rank.
constexpr size_t kMinPlaces = 64, kMinPlacesOfRail = 4, kSparePlacesOfHost = 64;
constexpr std::chrono::seconds kNetworkDeadline{3};
/// The deadline for connections of this host. A rank on an overloaded host may take long between two messages.
constexpr std::chrono::seconds kLocalDeadline{10};
/// The length of magic and version, with which a request begins. A connection is refused as soon as these bytes have
/// arrived and are wrong.
constexpr size_t kMagicAndVersionBytes = 6;

constexpr std::string_view kUnproven = "it does not prove to be one of this job";

}  // namespace

rendezvous::PendingLimits HandshakeServer::networkLimits(size_t numRails, size_t numRanks) {
  return {std::max({kMinPlaces / numRails, kMinPlacesOfRail, numRanks}), wire::kRequestBytes, kNetworkDeadline};
}

rendezvous::PendingLimits HandshakeServer::localLimits(size_t numRanks) {
  return {kSparePlacesOfHost + numRanks, wire::kRequestBytes, kLocalDeadline};
}

void HandshakeServer::add(std::unique_ptr<Connection> connection) {
  connection->bytes_.resize(pending_.limits().numBytes);
  if (pending_.add(std::move(connection)) != nullptr) countRefused("too many others came after it");
}

void HandshakeServer::read(Connection& connection) { finish(connection, advance(connection)); }

void HandshakeServer::readAll() {
  pending_.forEach([&](Connection& connection) { read(connection); });
}

io::Clock::time_point HandshakeServer::expire(io::Clock::time_point now) {
  for (size_t numLate = pending_.takeLate(now).size(); numLate > 0; --numLate) {
    countRefused("it has not proven itself in time");
  }
  io::Clock::time_point next = pending_.isEmpty() ? io::Clock::time_point::max() : now + pending_.kCheckInterval;
  pending_.forEach([&](Connection& connection) {
    if (!connection.isRequestWhole()) return;
    const Verdict verdict = answer(connection);
    if (verdict == Verdict::kWait && !connection.responder_) {
      next = std::min(next, directory_.askAgainAt(connection.peer_));
    }
    finish(connection, verdict);
  });
  return next;
}

HandshakeServer::Verdict HandshakeServer::advance(Connection& connection) {
  // Read only up to the end of the expected handshake message. After the confirmation, the next bytes are frames, which
  // the new owner of the connection must read. After its request, a peer waits for the reply and sends nothing.
  const size_t wanted = connection.responder_ ? wire::kConfirmBytes : wire::kRequestBytes;
  const std::span<std::byte> missing = std::span(connection.bytes_).first(wanted).subspan(connection.size_);
  const std::optional<size_t> numRead = connection.read(missing);
  if (!numRead) return Verdict::kRefuse;
  connection.size_ += *numRead;
  if (!connection.responder_ && connection.size_ >= kMagicAndVersionBytes &&
      !wire::readClaim(std::span(connection.bytes_).first<wire::kRequestBytes>())) {
    return Verdict::kRefuse;
  }
  if (*numRead == 0 || connection.size_ < wanted) return Verdict::kWait;
  if (!connection.responder_) return answer(connection);
  const bool isProven = connection.responder_->isConfirmedBy(std::span(connection.bytes_).first<wire::kConfirmBytes>());
  return isProven ? Verdict::kAccept : Verdict::kRefuse;
}

HandshakeServer::Verdict HandshakeServer::answer(Connection& connection) {
  rendezvous::Admission admission = admit(std::span(connection.bytes_).first<wire::kRequestBytes>(), directory_);
  connection.peer_ = admission.peer;
  if (admission.verdict == rendezvous::Admission::Verdict::kWait) return Verdict::kWait;
  if (admission.verdict == rendezvous::Admission::Verdict::kRefuse) return Verdict::kRefuse;
  connection.responder_ = std::move(admission.responder);
  connection.size_ = 0;
  return connection.reply(connection.responder_->reply()) ? Verdict::kWait : Verdict::kRefuse;
}

void HandshakeServer::finish(Connection& connection, Verdict verdict) {
  if (verdict == Verdict::kWait) return;
  const std::unique_ptr<Connection> taken = pending_.take(connection);
  if (verdict == Verdict::kRefuse) return countRefused(kUnproven);
  const Status status = taken->accept(taken->peer_, *taken->responder_);
  if (!status.isOk()) countRefused(status.message());
}

void HandshakeServer::countRefused(std::string_view why) {
  // There may be thousands of refusals, so log only the 1st, 2nd, 4th, 8th, ...
  const rendezvous::RankNames& names = directory_.names();
  if (!std::has_single_bit(++numRefused_) || !names.areLogged()) return;
  AG_LOG(kInfo, "{} refused {} ({} so far): {}", names.of(directory_.options().rank), kind_, numRefused_, why);
}

}  // namespace agspeed::comm::transport
