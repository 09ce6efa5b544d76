// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/tcp/tcp_rail.h"

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"

namespace agspeed::comm::tcp {
namespace {

using std::chrono::milliseconds;

constexpr io::Clock::duration kFirstPause = milliseconds(5);
constexpr io::Clock::duration kLongestPause = milliseconds(500);
/// A connection that lasted this long resets the pause before the next attempt.
constexpr io::Clock::duration kLastingTime = milliseconds(1000);
constexpr io::Clock::duration kBusyTick = milliseconds(10);
constexpr io::Clock::duration kConnectingTick = milliseconds(40);
constexpr io::Clock::duration kIdleTick = milliseconds(1000);
/// Interval between two samples of all connections.
constexpr io::Clock::duration kSampleInterval = milliseconds(1);
/// If a peer acknowledges nothing for this time, the bytes in flight to it do not count as load of the rail. Otherwise
/// frames to other peers would seem to wait for these bytes.
constexpr io::Clock::duration kStuckAfter = milliseconds(100);
/// The limit of connections that the rail is making at a time. With hundreds of peers, more attempts would delay each
/// other until they time out.
constexpr int kMaxConnecting = 8;
/// coalesceSeconds() = kCoalesceShare * (time to carry the rail's bytes in flight - one round trip), but at most
/// kMaxCoalescedBytes / (rate of the connection). This maximum limits the unread bytes, because about as many bytes
/// arrive as leave. Linux delays acknowledgements of bytes that the process has not read (__tcp_ack_snd_check), so a
/// process that sleeps too long delays its peer.
constexpr double kCoalesceShare = 0.5, kMaxCoalescedBytes = 16 * 1024;
/// The rate of the rail is measured only while at least this many bytes are in flight. Fewer bytes wait for a delayed
/// acknowledgement, so their rate would say nothing about the path.
constexpr uint64_t kMinBusyBytes = 8 * 1024;

}  // namespace

StatusOr<std::unique_ptr<transport::Rail>> TcpRail::create(transport::RailOptions options, io::Poller& poller,
                                                           rendezvous::Directory& directory) {
  AG_ASSIGN_OR_RETURN(Socket listener, Socket::listen(options.address));
  return std::unique_ptr<transport::Rail>(new TcpRail(std::move(options), std::move(listener), poller, directory));
}

TcpRail::TcpRail(transport::RailOptions options, Socket listener, io::Poller& poller, rendezvous::Directory& directory)
    : options_(std::move(options)),
      poller_(poller),
      directory_(directory),
      acceptor_(poller, std::move(listener), options_.numRails, directory, *this),
      triedLast_(directory.options().rank) {}

const transport::Transport::Capabilities& TcpRail::capabilities(int) const {
  static constexpr Capabilities kCapabilities = {
      .isReliable = true, .segmentBytes = wire::kMaxPayloadBytes / 2, .maxPayloadBytes = wire::kMaxPayloadBytes};
  return kCapabilities;
}

void TcpRail::connect(int peer) { peers_[peer].isWanted = true; }

bool TcpRail::canSend(int peer) const {
  const auto found = peers_.find(peer);
  return found != peers_.end() && found->second.sender != nullptr && found->second.sender->canSend();
}

void TcpRail::send(int peer, const transport::OutgoingFrame& frame) {
  PeerConnections& connections = peers_.at(peer);
  const io::Clock::time_point now = io::Clock::now();
  if (now - load_.sampledAt >= kSampleInterval) sampleLoad(now);
  if (!std::exchange(connections.isBusy, true)) connections.ackedAt = now;
  load_.numInFlight += static_cast<double>(frame.payload.size());
  connections.sender->send(frame);
}

void TcpRail::flush(int peer) {
  const auto found = peers_.find(peer);
  if (found != peers_.end() && found->second.sender != nullptr) found->second.sender->flush();
}

bool TcpRail::isReading(int peer) const {
  const auto found = peers_.find(peer);
  return found != peers_.end() && found->second.sender != nullptr && !found->second.sender->isEmpty();
}

void TcpRail::sampleLoad(io::Clock::time_point now) {
  load_.sampledAt = now;
  uint64_t sum = 0;
  size_t numUp = 0, numBusy = 0;
  double roundTripSeconds = 0;
  for (auto& [peer, connections] : peers_) {
    if (connections.sender == nullptr || !connections.sender->isUp()) continue;
    ++numUp;
    connections.sender->ageRate(load_.numAcked, load_.rate.bytesPerSecond());
    if (!connections.isBusy) continue;
    const uint64_t numInFlight = connections.sender->numInFlight();
    const uint64_t numAcked = connections.sender->numBytes() - numInFlight;
    if (numAcked > connections.numAcked || numInFlight == 0) connections.ackedAt = now;
    load_.numAcked += numAcked - std::exchange(connections.numAcked, numAcked);
    connections.isBusy = numInFlight > 0 || !connections.sender->isFlushed();
    if (numInFlight == 0 || now - connections.ackedAt > kStuckAfter) continue;
    ++numBusy;
    sum += numInFlight;
    roundTripSeconds = std::max(roundTripSeconds, connections.sender->minRoundTripSeconds());
  }
  load_.numInFlight = static_cast<double>(sum);
  load_.rate.update(now, load_.numAcked, numBusy < std::min<size_t>(2, numUp) || sum < kMinBusyBytes, roundTripSeconds);
}

void TcpRail::cancelReceive(int peer, ByteView target) {
  const auto found = peers_.find(peer);
  if (found != peers_.end() && found->second.receiver != nullptr) found->second.receiver->cancelReceive(target);
}

void TcpRail::cancelSend(int peer, uint64_t, ByteView payload) {
  const auto found = peers_.find(peer);
  if (found != peers_.end() && found->second.sender != nullptr) found->second.sender->cancelSend(payload);
}

bool TcpRail::isFlushed() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const auto& entry) {
    return entry.second.sender == nullptr || entry.second.sender->isFlushed();
  });
}

std::string TcpRail::describeRoute(int peer) const {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || found->second.sender == nullptr || !found->second.sender->isUp()) return "";
  return formatText("rail {} ({} to {})", options_.index, toString(options_.address.address),
                    found->second.peerAddress);
}

bool TcpRail::mayStillReceive(int peer) const {
  const auto found = peers_.find(peer);
  return found != peers_.end() && found->second.receiver != nullptr;
}

double TcpRail::deliverySeconds(int peer, size_t numBytes) const {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || found->second.sender == nullptr) return 0;
  Sender& sender = *found->second.sender;
  return sender.minRoundTripSeconds() / 2 + std::max(sender.carrySeconds(numBytes), carrySeconds(numBytes));
}

double TcpRail::coalesceSeconds(int peer) const {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || found->second.sender == nullptr) return 0;
  Sender& sender = *found->second.sender;
  const double alone = sender.bytesPerSecond();
  if (alone == 0) return 0;
  // carrySeconds(0) includes the bytes in flight of all connections, because they share the path. Subtract a round
  // trip, because during the last round trip, the path carries no more bytes and only brings acknowledgements.
  return std::clamp(kCoalesceShare * (carrySeconds(0) - sender.minRoundTripSeconds()), 0.0, kMaxCoalescedBytes / alone);
}

double TcpRail::carrySeconds(size_t numBytes) const {
  const double rate = load_.rate.bytesPerSecond();
  if (rate == 0) return 0;
  const double sinceSample = std::chrono::duration<double>(io::Clock::now() - load_.sampledAt).count();
  return (std::max(0.0, load_.numInFlight - rate * sinceSample) + static_cast<double>(numBytes)) / rate;
}

double TcpRail::minRoundTripSeconds(int peer) const {
  const auto found = peers_.find(peer);
  return found != peers_.end() && found->second.sender != nullptr ? found->second.sender->minRoundTripSeconds() : 0;
}

transport::RailInfo TcpRail::info() const {
  return {options_.address, options_.device, load_.rate.bestBytesPerSecond(), acceptor_.numRefused(), options_.isHome};
}

io::Clock::time_point TcpRail::tick(io::Clock::time_point now) {
  closedSenders_.clear();
  closedReceivers_.clear();
  sampleLoad(now);
  io::Clock::time_point next = std::min(now + kIdleTick, acceptor_.expire(now));
  int numConnecting = 0;
  for (auto& [peer, connections] : peers_) {
    const bool isBusy = connections.sender != nullptr && connections.sender->check(now);
    if (connections.sender == nullptr) continue;
    if (connections.sender->hasCarriedLarge()) connections.hasLostAllLarge = false;
    warnOfSmallPackets(peer, connections, now);
    if (!connections.sender->isEstablished()) {
      ++numConnecting;
    } else if (isBusy) {
      next = std::min(next, now + kBusyTick);
    }
  }
  return std::min(next, connectWanted(now, numConnecting));
}

io::Clock::time_point TcpRail::connectWanted(io::Clock::time_point now, int numConnecting) {
  io::Clock::time_point next = io::Clock::time_point::max();
  // Every rank begins with the peer after itself, so that ranks do not all connect to the same peer first. The next
  // call continues after the peer that was tried last. So peers that do not answer cannot delay the connections to
  // other peers.
  auto at = peers_.upper_bound(triedLast_);
  for (size_t i = 0; i < peers_.size(); ++i, ++at) {
    if (at == peers_.end()) at = peers_.begin();
    PeerConnections& connections = at->second;
    if (!connections.isWanted || connections.sender != nullptr) continue;
    if (now >= connections.nextAttempt) {
      if (numConnecting >= kMaxConnecting) continue;  // the next tick, after kConnectingTick, tries again
      attempt(triedLast_ = at->first, connections, now);
      if (connections.sender != nullptr) ++numConnecting;
    }
    if (connections.isWanted && connections.sender == nullptr)
      next = std::min(next, std::max(connections.nextAttempt, now));
  }
  return numConnecting > 0 ? std::min(next, now + kConnectingTick) : next;
}

void TcpRail::attempt(int peer, PeerConnections& connections, io::Clock::time_point now) {
  const StatusOr<const rendezvous::Peer*> found = directory_.find(peer, now);
  if (!found.hasValue()) {
    connections.isWanted = false;
    return sink_->lost(peer, transport::LossCause::kIncompatible, found.status());
  }
  if (*found == nullptr) {  // the peer has not published itself yet
    connections.nextAttempt = std::max<io::Clock::time_point>(now + kFirstPause, directory_.askAgainAt(peer));
    return;
  }
  const rendezvous::PeerRecord& record = (*found)->record;
  const std::vector<int> pairs = pairRails(directory_.rails(), record.rails);
  const int theirs = connections.peerRail = pairs[options_.index];
  if (theirs < 0) {
    if (std::count(pairs.begin(), pairs.end(), -1) == std::ssize(pairs)) {
      return failAttempt(peer, connections, transport::LossCause::kUnreachable,
                         describe(peer, "the peer has no address of the same kind (IPv4 or IPv6)"));
    }
    connections.isWanted = false;
    return sink_->lost(peer, transport::LossCause::kUnpaired, describe(peer, "the peer has no rail left for it"));
  }
  const rendezvous::RailAddress& address = record.rails[static_cast<size_t>(theirs)];
  connections.peerAddress = toString(address.address);
  StatusOr<Socket> socket =
      Socket::connect(options_.address.address, options_.device, address, connections.hasSmallPackets);
  if (!socket.hasValue())
    return failAttempt(peer, connections, transport::LossCause::kUnreachable,
                       describe(peer, socket.status().message()));
  const rendezvous::DirectoryOptions& self = directory_.options();
  const wire::Claim claim = {self.protection, self.epoch, static_cast<uint32_t>(self.rank),
                             static_cast<uint32_t>(peer)};
  connections.upSince = {};
  connections.numAcked = 0;
  connections.sender = std::make_unique<Sender>(poller_, std::move(*socket), wire::Initiator(claim, (*found)->secret),
                                                self.protection, peer, *this);
}

void TcpRail::failAttempt(int peer, PeerConnections& connections, transport::LossCause cause, const Status& status) {
  const io::Clock::time_point now = io::Clock::now();
  const bool hasLasted = connections.upSince != io::Clock::time_point() && now - connections.upSince > kLastingTime;
  connections.pause = hasLasted ? kFirstPause : std::clamp(connections.pause * 2, kFirstPause, kLongestPause);
  connections.upSince = {};
  // After the loss of a connection that lasted, try again at once. This attempt shows whether the peer is dead or only
  // the connection.
  connections.nextAttempt = hasLasted ? now : now + connections.pause;
  sink_->lost(peer, cause, status);
}

void TcpRail::warnOfSmallPackets(int peer, PeerConnections& connections, io::Clock::time_point now) {
  const bool hasWorked = connections.sender->isUp() && now - connections.upSince > kLastingTime;
  if (!connections.hasSmallPackets || connections.isWarned || !hasWorked) return;
  connections.isWarned = true;
  if (!directory_.names().areLogged()) return;
  const std::string payload = std::to_string(Socket::kSmallPacketPayload);
  AG_LOG(kWarn, describe(peer, "large packets seem to be lost on the way, so packets of " + payload +
                                   " bytes are used instead; set the MTU of the interface to the MTU of the path")
                    .message());
}

void TcpRail::senderWritable(int peer) {
  PeerConnections& connections = peers_.at(peer);
  if (connections.upSince == io::Clock::time_point()) connections.upSince = io::Clock::now();
  sink_->writable(peer);
}

void TcpRail::senderStalled(int peer, transport::LossCause cause, const std::string& why) {
  PeerConnections& connections = peers_.at(peer);
  // The small handshake arrived, but no large frame did, so the path may drop large packets. Act only after the second
  // such connection in a row, because the first may have been cut by chance. If small packets do not help either, try
  // large ones again.
  if (connections.sender->hasLostAllLarge()) {
    if (connections.hasLostAllLarge) connections.hasSmallPackets = !connections.hasSmallPackets;
    connections.hasLostAllLarge = !connections.hasLostAllLarge;
    connections.upSince = {};
    return connections.sender->giveUp(why + ", and no large frame has ever arrived");
  }
  sink_->lost(peer, cause, describe(peer, why));
}

void TcpRail::senderLost(int peer, transport::LossCause cause, const std::string& why) {
  PeerConnections& connections = peers_.at(peer);
  closedSenders_.push_back(std::move(connections.sender));
  failAttempt(peer, connections, cause, describe(peer, why));
}

void TcpRail::receiverLost(int peer, transport::LossCause cause) {
  PeerConnections& connections = peers_.at(peer);
  closedReceivers_.push_back(std::move(connections.receiver));
  if (cause != transport::LossCause::kCorrupted || std::exchange(connections.isCorruptionLogged, true)) return;
  AG_LOG(kWarn,
         "{}: rail {} ({}): bytes that came from {} were changed on the way, by a fault or on purpose; they "
         "were discarded, the connection was closed, and its bytes are sent again; check the network card, its "
         "driver and the switches of this interface",
         directory_.names().of(directory_.options().rank), options_.index, toString(options_.address.address),
         directory_.names().of(peer));
}

void TcpRail::accepted(int peer, Socket socket, security::Opener opener) {
  PeerConnections& connections = peers_[peer];
  // The assignment destroys the old receiver and closes its connection. So no late bytes of the old connection are
  // written to a message's buffer after the new connection has begun to write there.
  connections.receiver = std::make_unique<Receiver>(poller_, std::move(socket), std::move(opener), *sink_, peer, *this);
}

void TcpRail::linkChanged(bool isUp) {
  if (isUp == isLinkUp_) return;
  isLinkUp_ = isUp;
  for (auto& [peer, connections] : peers_) {
    connections.nextAttempt = {};
    if (!isUp && connections.sender != nullptr)
      connections.sender->giveUp("the interface " + options_.device + " has no carrier");
  }
}

void TcpRail::disconnect(int peer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  found->second.isWanted = false;
  if (found->second.sender != nullptr) found->second.sender->giveUp("the peer was given up");
}

void TcpRail::peerLinkChanged(int peer, uint64_t rail, bool isUp) {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || found->second.peerRail < 0 || static_cast<uint64_t>(found->second.peerRail) != rail) {
    return;
  }
  PeerConnections& connections = found->second;
  // If the link has returned and a connection is already up, it was made after the return and may be intact. A
  // connection that is still being made has lost its first packets, so give it up.
  if (connections.sender != nullptr && !(isUp && connections.sender->isUp())) {
    connections.sender->giveUp(isUp ? "the peer's interface has its carrier again"
                                    : "the peer's interface has no carrier");
  }
  if (isUp) connections.nextAttempt = {};
}

Status TcpRail::describe(int peer, const std::string& what) const {
  const std::string& peerAddress = peers_.at(peer).peerAddress;
  const rendezvous::RankNames& names = directory_.names();
  return unavailable("{}: rail {} ({}) to {}{}: {}", names.of(directory_.options().rank), options_.index,
                     toString(options_.address.address), names.of(peer),
                     peerAddress.empty() ? "" : " (" + peerAddress + ")", what);
}

}  // namespace agspeed::comm::tcp
