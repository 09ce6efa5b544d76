// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/tcp/tcp_rail.h"

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"

namespace agspeed::comm::tcp {
namespace {

using std::chrono::milliseconds;

constexpr Clock::duration kFirstPause = milliseconds(5);
constexpr Clock::duration kLongestPause = milliseconds(500);
/// A connection that lasted this long was not part of a flap.
constexpr Clock::duration kLastingTime = milliseconds(1000);
constexpr Clock::duration kBusyTick = milliseconds(10);
constexpr Clock::duration kConnectingTick = milliseconds(40);
constexpr Clock::duration kIdleTick = milliseconds(1000);
/// Between two looks at all connections.
constexpr Clock::duration kLookInterval = milliseconds(1);
/// A connection whose peer takes nothing for so long holds up nobody else.
constexpr Clock::duration kStuckAfter = milliseconds(100);
/// So many connections are made at a time: with hundreds of peers more would time out waiting for each other.
constexpr int kMaxConnecting = 8;
/// A rail is left alone for this share of the time in which it carries what is under way, and no longer than a
/// connection takes to carry so much. About as much comes as goes, it is presumed, and kernels acknowledge little of
/// what their process leaves lying (tcp_ack_snd_check).
constexpr double kRestShare = 0.5, kRestBytes = 16 * 1024;
/// Fewer wait for an acknowledgement that is late, not for the path.
constexpr uint64_t kLeastBusyBytes = 8 * 1024;

}  // namespace

StatusOr<std::unique_ptr<TcpRail>> TcpRail::create(RailOptions options, Poller& poller, Directory& directory) {
  AG_ASSIGN_OR_RETURN(Socket listener, Socket::listen(options.address));
  return std::unique_ptr<TcpRail>(new TcpRail(std::move(options), std::move(listener), poller, directory));
}

TcpRail::TcpRail(RailOptions options, Socket listener, Poller& poller, Directory& directory)
    : options_(std::move(options)),
      poller_(poller),
      directory_(directory),
      acceptor_(poller, std::move(listener), options_.numRails, directory, *this),
      triedLast_(directory.options().rank) {}

const Transport::Capabilities& TcpRail::capabilities() const {
  static constexpr Capabilities kCapabilities = {
      .isReliable = true, .segmentBytes = kMaxPayloadBytes / 2, .maxPayloadBytes = kMaxPayloadBytes};
  return kCapabilities;
}

void TcpRail::connect(int peer) { lanes_[peer].isWanted = true; }

bool TcpRail::canSend(int peer) const {
  const auto lane = lanes_.find(peer);
  return lane != lanes_.end() && lane->second.writer != nullptr && lane->second.writer->canSend();
}

void TcpRail::send(int peer, const OutgoingFrame& frame) {
  PeerConnections& lane = lanes_.at(peer);
  const Clock::time_point now = Clock::now();
  if (now - load_.lookedAt >= kLookInterval) sampleLoad(now);
  if (!std::exchange(lane.isBusy, true)) lane.ackedAt = now;
  load_.numUnderWay += static_cast<double>(frame.payload.size());
  lane.writer->send(frame);
}

void TcpRail::sampleLoad(Clock::time_point now) {
  load_.lookedAt = now;
  uint64_t sum = 0;
  size_t numUp = 0, numBusy = 0;
  double roundTripSeconds = 0;
  for (auto& [peer, lane] : lanes_) {
    if (lane.writer == nullptr || !lane.writer->isUp()) continue;
    ++numUp;
    lane.writer->ageRate(load_.numAcked, load_.rate.bytesPerSecond());
    if (!lane.isBusy) continue;
    const uint64_t numUnderWay = lane.writer->numUnderWay();
    const uint64_t numAcked = lane.writer->numBytes() - numUnderWay;
    if (numAcked > lane.numAcked || numUnderWay == 0) lane.ackedAt = now;
    load_.numAcked += numAcked - std::exchange(lane.numAcked, numAcked);
    lane.isBusy = numUnderWay > 0 || !lane.writer->isFlushed();
    if (numUnderWay == 0 || now - lane.ackedAt > kStuckAfter) continue;
    ++numBusy;
    sum += numUnderWay;
    roundTripSeconds = std::max(roundTripSeconds, lane.writer->leastRoundTripSeconds());
  }
  load_.numUnderWay = static_cast<double>(sum);
  load_.rate.look(now, load_.numAcked, numBusy < std::min<size_t>(2, numUp) || sum < kLeastBusyBytes, roundTripSeconds);
}

void TcpRail::cancelReceive(int peer, ByteView target) {
  const auto lane = lanes_.find(peer);
  if (lane != lanes_.end() && lane->second.reader != nullptr) lane->second.reader->cancelReceive(target);
}

void TcpRail::cancelSend(int peer, uint64_t, ByteView payload) {
  const auto lane = lanes_.find(peer);
  if (lane != lanes_.end() && lane->second.writer != nullptr) lane->second.writer->cancelSend(payload);
}

bool TcpRail::isFlushed() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& entry) {
    return entry.second.writer == nullptr || entry.second.writer->isFlushed();
  });
}

std::string TcpRail::route(int peer) const {
  const auto lane = lanes_.find(peer);
  if (lane == lanes_.end() || lane->second.writer == nullptr || !lane->second.writer->isUp()) return "";
  return formatText("rail {} ({} to {})", options_.index, toString(options_.address.address), lane->second.peerAddress);
}

bool TcpRail::mayStillReceive(int peer) const {
  const auto lane = lanes_.find(peer);
  return lane != lanes_.end() && lane->second.reader != nullptr;
}

double TcpRail::deliverySeconds(int peer, size_t numBytes) const {
  const auto lane = lanes_.find(peer);
  if (lane == lanes_.end() || lane->second.writer == nullptr) return 0;
  Sender& writer = *lane->second.writer;
  return writer.leastRoundTripSeconds() / 2 + std::max(writer.carrySeconds(numBytes), carrySeconds(numBytes));
}

double TcpRail::coalesceSeconds(int peer) const {
  const auto lane = lanes_.find(peer);
  if (lane == lanes_.end() || lane->second.writer == nullptr) return 0;
  Sender& writer = *lane->second.writer;
  const double alone = writer.bytesPerSecond();
  if (alone == 0) return 0;
  // Of all connections: what is not under way on this one others carry. What acknowledges the last of it is not
  // carried.
  return std::clamp(kRestShare * (carrySeconds(0) - writer.leastRoundTripSeconds()), 0.0, kRestBytes / alone);
}

double TcpRail::carrySeconds(size_t numBytes) const {
  const double rate = load_.rate.bytesPerSecond();
  if (rate == 0) return 0;
  const double sinceLook = std::chrono::duration<double>(Clock::now() - load_.lookedAt).count();
  return (std::max(0.0, load_.numUnderWay - rate * sinceLook) + static_cast<double>(numBytes)) / rate;
}

double TcpRail::leastRoundTripSeconds(int peer) const {
  const auto lane = lanes_.find(peer);
  return lane != lanes_.end() && lane->second.writer != nullptr ? lane->second.writer->leastRoundTripSeconds() : 0;
}

Clock::time_point TcpRail::tick(Clock::time_point now) {
  closedSenders_.clear();
  closedReceivers_.clear();
  sampleLoad(now);
  Clock::time_point next = std::min(now + kIdleTick, acceptor_.expire(now));
  int numConnecting = 0;
  for (auto& [peer, lane] : lanes_) {
    const bool isBusy = lane.writer != nullptr && lane.writer->check(now);
    if (lane.writer == nullptr) continue;
    if (lane.writer->hasCarriedLarge()) lane.hasLostAllLarge = false;
    warnOfSmallPackets(peer, lane, now);
    if (!lane.writer->isEstablished()) {
      ++numConnecting;
    } else if (isBusy) {
      next = std::min(next, now + kBusyTick);
    }
  }
  return std::min(next, connectWanted(now, numConnecting));
}

Clock::time_point TcpRail::connectWanted(Clock::time_point now, int numConnecting) {
  Clock::time_point next = Clock::time_point::max();
  // Every rank begins with those after it, so that not all come to the same one, and goes on after whom it tried last,
  // so that those who do not answer keep nobody waiting.
  auto at = lanes_.upper_bound(triedLast_);
  for (size_t i = 0; i < lanes_.size(); ++i, ++at) {
    if (at == lanes_.end()) at = lanes_.begin();
    PeerConnections& lane = at->second;
    if (!lane.isWanted || lane.writer != nullptr) continue;
    if (now >= lane.nextAttempt) {
      if (numConnecting >= kMaxConnecting) continue;  // a connection less is soon seen
      attempt(triedLast_ = at->first, lane, now);
      if (lane.writer != nullptr) ++numConnecting;
    }
    if (lane.isWanted && lane.writer == nullptr) next = std::min(next, std::max(lane.nextAttempt, now));
  }
  return numConnecting > 0 ? std::min(next, now + kConnectingTick) : next;
}

void TcpRail::attempt(int peer, PeerConnections& lane, Clock::time_point now) {
  const StatusOr<const Peer*> found = directory_.find(peer, now);
  if (!found) {
    lane.isWanted = false;
    return sink_->lost(peer, LossCause::kIncompatible, found.status());
  }
  if (*found == nullptr) {  // it has not started yet
    lane.nextAttempt = std::max<Clock::time_point>(now + kFirstPause, directory_.askAgainAt(peer));
    return;
  }
  const PeerRecord& record = (*found)->record;
  const std::vector<int> pairs = pairRails(directory_.rails(), record.rails);
  const int theirs = lane.peerRail = pairs[options_.index];
  if (theirs < 0) {
    if (std::count(pairs.begin(), pairs.end(), -1) == std::ssize(pairs)) {
      return failAttempt(peer, lane, LossCause::kUnreachable,
                         describe(peer, "the peer has no address of the same kind (IPv4 or IPv6)"));
    }
    lane.isWanted = false;
    return sink_->lost(peer, LossCause::kUnpaired, describe(peer, "the peer has no rail left for it"));
  }
  const RailAddress& address = record.rails[static_cast<size_t>(theirs)];
  lane.peerAddress = toString(address.address);
  StatusOr<Socket> socket = Socket::connect(options_.address.address, options_.device, address, lane.hasSmallPackets);
  if (!socket) return failAttempt(peer, lane, LossCause::kUnreachable, describe(peer, socket.status().message()));
  const DirectoryOptions& self = directory_.options();
  const Claim claim = {self.protection, self.epoch, static_cast<uint32_t>(self.rank), static_cast<uint32_t>(peer)};
  lane.upSince = {};
  lane.numAcked = 0;
  lane.writer = std::make_unique<Sender>(poller_, std::move(*socket), Initiator(claim, (*found)->secret),
                                         self.protection, peer, *this);
}

void TcpRail::failAttempt(int peer, PeerConnections& lane, LossCause cause, const Status& status) {
  const Clock::time_point now = Clock::now();
  const bool hasLasted = lane.upSince != Clock::time_point() && now - lane.upSince > kLastingTime;
  lane.pause = hasLasted ? kFirstPause : std::clamp(lane.pause * 2, kFirstPause, kLongestPause);
  lane.upSince = {};
  // The first attempt after a connection that lasted is made at once: it tells a dead peer from a dead connection.
  lane.nextAttempt = hasLasted ? now : now + lane.pause;
  sink_->lost(peer, cause, status);
}

void TcpRail::warnOfSmallPackets(int peer, PeerConnections& lane, Clock::time_point now) {
  const bool hasWorked = lane.writer->isUp() && now - lane.upSince > kLastingTime;
  if (!lane.hasSmallPackets || lane.isWarned || !hasWorked) return;
  lane.isWarned = true;
  const std::string payload = std::to_string(Socket::kSmallPacketPayload);
  AG_LOG(kWarn, describe(peer, "large packets seem to be lost on the way, small ones of " + payload +
                                   " bytes are used instead; make the MTU of the interface that of the path")
                    .message());
}

void TcpRail::writerWritable(int peer) {
  PeerConnections& lane = lanes_.at(peer);
  if (lane.upSince == Clock::time_point()) lane.upSince = Clock::now();
  sink_->writable(peer);
}

void TcpRail::writerStalled(int peer, LossCause cause, const std::string& why) {
  PeerConnections& lane = lanes_.at(peer);
  // Greetings are small and frames are not. One connection may have been cut just then; where small packets do not help
  // either, large ones have another try.
  if (lane.writer->hasLostAllLarge()) {
    if (lane.hasLostAllLarge) lane.hasSmallPackets = !lane.hasSmallPackets;
    lane.hasLostAllLarge = !lane.hasLostAllLarge;
    lane.upSince = {};
    return lane.writer->giveUp(why + ", and no large frame has ever arrived");
  }
  sink_->lost(peer, cause, describe(peer, why));
}

void TcpRail::writerLost(int peer, LossCause cause, const std::string& why) {
  PeerConnections& lane = lanes_.at(peer);
  closedSenders_.push_back(std::move(lane.writer));
  failAttempt(peer, lane, cause, describe(peer, why));
}

void TcpRail::readerLost(int peer, LossCause) { closedReceivers_.push_back(std::move(lanes_.at(peer).reader)); }

void TcpRail::accepted(int peer, Socket socket, Opener opener) {
  PeerConnections& lane = lanes_[peer];
  // The old connection ends before the new one places anything, so that late bytes of the old one harm nothing.
  lane.reader = std::make_unique<Receiver>(poller_, std::move(socket), std::move(opener), *sink_, peer, *this);
}

void TcpRail::linkChanged(bool isUp) {
  if (isUp == hasCarrier_) return;
  hasCarrier_ = isUp;
  for (auto& [peer, lane] : lanes_) {
    lane.nextAttempt = {};
    if (!isUp && lane.writer != nullptr) lane.writer->giveUp("the interface " + options_.device + " has no carrier");
  }
}

void TcpRail::disconnect(int peer) {
  const auto lane = lanes_.find(peer);
  if (lane == lanes_.end()) return;
  lane->second.isWanted = false;
  if (lane->second.writer != nullptr) lane->second.writer->giveUp("the peer was given up");
}

void TcpRail::peerLinkChanged(int peer, uint64_t rail, bool hasCarrier) {
  const auto found = lanes_.find(peer);
  if (found == lanes_.end() || found->second.peerRail < 0 || static_cast<uint64_t>(found->second.peerRail) != rail) {
    return;
  }
  PeerConnections& lane = found->second;
  // What has been made since may be well; what is being made has lost its first packets.
  if (lane.writer != nullptr && !(hasCarrier && lane.writer->isUp())) {
    lane.writer->giveUp(hasCarrier ? "the peer's interface has its carrier again"
                                   : "the peer's interface has no carrier");
  }
  if (hasCarrier) lane.nextAttempt = {};
}

Status TcpRail::describe(int peer, const std::string& what) const {
  const std::string& peerAddress = lanes_.at(peer).peerAddress;
  return unavailable("rank {}: rail {} ({}) to rank {}{}: {}", directory_.options().rank, options_.index,
                     toString(options_.address.address), peer, peerAddress.empty() ? "" : " (" + peerAddress + ")",
                     what);
}

}  // namespace agspeed::comm::tcp
