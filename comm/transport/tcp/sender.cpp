// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/tcp/sender.h"
#include "runtime/base/format.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace agspeed::comm::tcp {
namespace {

constexpr std::chrono::milliseconds kConnectTimeout{1000};
/// A peer that has not answered the handshake after this time is reported as silent; it may be busy.
constexpr std::chrono::milliseconds kHandshakeWarningTime{300};
/// A little less than the acceptor's deadline (3 s), so that this end closes first and can log the reason.
constexpr std::chrono::milliseconds kHandshakeTimeout{2700};
/// The connection is stalled if bytes are in flight and the peer's kernel has acknowledged nothing for
/// max(kStallTimeout, kStallRoundTrips * smoothed round trip). The path may be cut, or it may have become so slow that
/// the bytes in flight take long.
constexpr std::chrono::milliseconds kStallTimeout{150};
constexpr double kStallRoundTrips = 6;
/// A stalled connection is closed after this further time.
constexpr std::chrono::milliseconds kStallGracePeriod{1000};

/// Limits of the unsent bytes in the kernel (not-sent low-water mark). With too few bytes, a rail has nothing to send
/// between two turns of the event loop. With too many bytes, a slow rail takes bytes that a fast rail could send
/// sooner.
///
/// The mark is rate * unsentSeconds_, between the two limits. If the process is scheduled late, several rails run out
/// of bytes. They are then filled equally, so slow rails get more than their share. Therefore keepFilled() doubles
/// unsentSeconds_ of a connection that has run out of bytes. The value decays afterwards.
constexpr int kMinUnsentBytes = 32 * 1024;
constexpr int kMaxUnsentBytes = 1024 * 1024;
constexpr double kMinUnsentSeconds = 2e-3;
constexpr double kMaxUnsentSeconds = 50e-3;
constexpr double kUnsentDecay = 0.99;  ///< factor of each check(); checks come every 10 ms

/// Limits of the bytes that are queued in this class, so that one system call writes several frames. With q = rate *
/// kQueuedSeconds, the limit is min(q, kMaxQueuedBytes) if q >= kWorthQueuing, else kMinQueuedBytes.
constexpr size_t kMinQueuedBytes = 4 * 1024;
constexpr double kWorthQueuing = 64 * 1024, kMaxQueuedBytes = 512 * 1024;
constexpr double kQueuedSeconds = 0.5e-3;

/// How often the sender asks the kernel for the number of unacknowledged bytes, by a system call. Between two samples,
/// the number is estimated from the connection's measured rate.
constexpr std::chrono::milliseconds kSampleInterval{1};

constexpr double kUnknownRate = 1e8;  ///< the rate that is assumed before the first measurement, in bytes per second

iovec partOf(ByteView bytes) { return {const_cast<std::byte*>(bytes.data()), bytes.size()}; }

transport::LossCause causeOf(int error) {
  if (error == ECONNREFUSED) return transport::LossCause::kRefused;
  if (error == ECONNRESET || error == EPIPE) return transport::LossCause::kClosed;
  return transport::LossCause::kUnreachable;
}

}  // namespace

Sender::Sender(io::Poller& poller, Socket socket, wire::Initiator initiator, security::Protection protection, int peer,
               Owner& owner)
    : poller_(poller),
      socket_(std::move(socket)),
      initiator_(std::move(initiator)),
      protection_(protection),
      peer_(peer),
      owner_(owner),
      // Edge-triggered: EPOLLOUT need not be added when the socket becomes full, and removed when it has room again.
      pollId_(poller.add(socket_.descriptor(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, *this)),
      active_(io::Clock::now()),
      unsentSeconds_(kMinUnsentSeconds) {}

Sender::~Sender() {
  if (state_ != State::kClosed) poller_.remove(pollId_, socket_.descriptor());
}

void Sender::close(transport::LossCause cause, const std::string& why) {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  poller_.remove(pollId_, socket_.descriptor());
  socket_.reset();
  owner_.senderLost(peer_, cause, why);
}

void Sender::ready(uint32_t events) {
  if (state_ == State::kConnecting) finishConnecting();
  if (state_ == State::kHandshaking) return finishHandshake();
  if (state_ != State::kUp) return;
  if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) readAfterHandshake();
  if (state_ != State::kUp || (events & EPOLLOUT) == 0 || !isFull_) return;
  keepFilled();
  isFull_ = false;
  if (!hasRoom()) flush();
  if (canSend()) owner_.senderWritable(peer_);
  if (state_ == State::kUp) flush();
}

bool Sender::writeSmall(ByteView bytes) {
  // An empty socket accepts a whole handshake message, or it is broken.
  const iovec part = partOf(bytes);
  return socket_.write(std::span(&part, 1)).numBytes == bytes.size();
}

void Sender::finishConnecting() {
  if (const int error = socket_.connectError(); error != 0) {
    return close(causeOf(error), std::string("connecting failed: ") + std::strerror(error));
  }
  socket_.prepare();
  if (!writeSmall(initiator_.request())) return close(transport::LossCause::kClosed, "closed before the handshake");
  state_ = State::kHandshaking;
  waited_ = {};
}

void Sender::finishHandshake() {
  const iovec part = {reply_.data() + replySize_, reply_.size() - replySize_};
  const Moved moved = socket_.read(std::span(&part, 1));
  if (!moved.isOpen) return close(transport::LossCause::kClosed, "closed during the handshake");
  replySize_ += moved.numBytes;
  if (replySize_ < reply_.size()) return;
  const std::optional<wire::ConfirmBytes> confirm = initiator_.confirm(reply_);
  if (!confirm) return close(transport::LossCause::kCorrupted, "the peer cannot prove its identity");
  if (!writeSmall(*confirm)) return close(transport::LossCause::kClosed, "closed during the handshake");
  sealer_.emplace(protection_, initiator_.frameKey(reply_));
  tcpInfo_ = socket_.tcpInfo();
  socket_.setNotSentLowat(notSentLowat_ = kMinUnsentBytes);
  state_ = State::kUp;
  owner_.senderWritable(peer_);
}

void Sender::readAfterHandshake() {
  std::byte byte{};
  const iovec part = {&byte, 1};
  const Moved moved = socket_.read(std::span(&part, 1));
  if (!moved.isOpen) return close(transport::LossCause::kClosed, "closed by the peer");
  if (moved.numBytes > 0)
    close(transport::LossCause::kCorrupted, "the peer sent bytes after the handshake, although it only receives here");
}

void Sender::send(const transport::OutgoingFrame& frame) {
  if (const io::Clock::time_point now = io::Clock::now(); now - sampledAt_ >= kSampleInterval) sampleAcks(now);
  if (isEmpty()) maxQueuedBytes_ = maxQueuedBytes();
  Queued& added = queued(numQueued_);
  seal(frame, added);
  if (added.numBytes > Socket::kSmallPacketPayload) firstLarge_ = std::min(firstLarge_, numBytes_ + queuedBytes_);
  ++numQueued_;
  queuedBytes_ += added.numBytes;
  if (!frame.mayWait || !hasRoom()) flush();
}

size_t Sender::maxQueuedBytes() const {
  const double carried = rate_.bytesPerSecond() * kQueuedSeconds;
  return carried < kWorthQueuing ? kMinQueuedBytes : static_cast<size_t>(std::min(carried, kMaxQueuedBytes));
}

void Sender::seal(const transport::OutgoingFrame& frame, Queued& queued) {
  const size_t tagSize = tagBytes(protection_);
  const std::span<std::byte> prefix(queued.prefix);
  encodeHeader(frame.header, prefix.first<wire::kHeaderBytes>());
  sealer_->sign(prefix.first(wire::kHeaderBytes), prefix.subspan(wire::kHeaderBytes, tagSize));
  queued.payload = frame.payload;
  queued.numBytes = wire::kHeaderBytes + tagSize;
  if (frame.payload.empty()) return;
  const std::span<std::byte> tag = std::span(queued.tag).first(tagSize);
  if (protection_ == security::Protection::kEncrypted) {
    if (queued.owned.capacity() < frame.payload.size()) queued.owned.swap(spare_);
    queued.owned.resize(frame.payload.size());
    sealer_->encrypt(frame.payload, queued.owned, tag);
    queued.payload = queued.owned;
  } else {
    sealer_->sign(frame.payload, tag);
  }
  queued.numBytes += frame.payload.size() + tagSize;
}

void Sender::flush() {
  if (!isEmpty() && !isFull_) write();
}

void Sender::write() {
  isQuiet_ = false;
  const size_t tagSize = tagBytes(protection_);
  std::array<iovec, 3 * kMaxQueued> left;
  size_t numLeft = 0;
  size_t skipped = written_;
  for (size_t i = 0; i < numQueued_; ++i) {
    const Queued& each = queued(i);
    for (const ByteView part : {ByteView(each.prefix).first(wire::kHeaderBytes + tagSize), each.payload,
                                ByteView(each.tag).first(each.payload.empty() ? 0 : tagSize)}) {
      const size_t skip = std::min(skipped, part.size());
      skipped -= skip;
      if (skip < part.size()) left[numLeft++] = partOf(part.subspan(skip));
    }
  }
  const Moved moved = socket_.write(std::span(left).first(numLeft));
  if (!moved.isOpen)
    return close(transport::LossCause::kClosed, std::string("writing failed: ") + std::strerror(errno));
  numBytes_ += moved.numBytes;
  written_ += moved.numBytes;
  queuedBytes_ -= moved.numBytes;
  isFull_ = queuedBytes_ > 0;
  for (; numQueued_ > 0 && written_ >= queued(0).numBytes; --numQueued_) {
    written_ -= queued(0).numBytes;
    keepSpare(queued(0).owned);
    firstQueued_ = (firstQueued_ + 1) % kMaxQueued;
  }
  maxQueuedBytes_ = maxQueuedBytes();
}

void Sender::keepSpare(std::vector<std::byte>& owned) {
  if (owned.capacity() > spare_.capacity()) owned.swap(spare_);
  if (owned.capacity() > kMinQueuedBytes) std::vector<std::byte>().swap(owned);
}

void Sender::cancelSend(ByteView bytes) {
  for (size_t i = 0; i < numQueued_; ++i) {
    Queued& each = queued(i);
    if (each.payload.data() == each.owned.data() || !transport::overlaps(each.payload, bytes)) continue;
    each.owned.assign(each.payload.begin(), each.payload.end());
    each.payload = each.owned;
  }
}

bool Sender::check(io::Clock::time_point now) {
  if (state_ != State::kUp) waited_ += active_.look(now);
  if (state_ == State::kConnecting && waited_ > kConnectTimeout) {
    close(transport::LossCause::kUnreachable, "the peer's host does not answer the connection attempt");
  }
  if (state_ == State::kClosed || isQuiet_) return false;
  const size_t numUnacknowledged = state_ == State::kConnecting ? 0 : socket_.unacknowledgedBytes();
  if (numUnacknowledged == 0) {
    acknowledged({});
    if (state_ == State::kHandshaking) awaitHandshake();
    isQuiet_ = state_ == State::kUp && isEmpty();
    return state_ != State::kUp;
  }
  if (progressAt_ == io::Clock::time_point()) progressAt_ = now;
  tcpInfo_ = socket_.tcpInfo();
  sampleAcks(now, numUnacknowledged);
  unsentSeconds_ = std::max(kMinUnsentSeconds, unsentSeconds_ * kUnsentDecay);
  setNotSentLowat();
  if (sendBufferLimit_.update(rate_.bytesPerSecond(), tcpInfo_.minRoundTripSeconds))
    socket_.setSendBuffer(sendBufferLimit_.bytes());
  // If unsent bytes wait and no packet is in flight, the peer's receive window is closed. The peer's process is slow,
  // but
  // its kernel answers, so this is not a stall.
  if (tcpInfo_.bytesAcked != bytesAcked_ || tcpInfo_.packetsInFlight == 0) acknowledged(now);
  bytesAcked_ = tcpInfo_.bytesAcked;
  checkStall(now);
  return true;
}

/// Requires: the peer's kernel has acknowledged the request, but the peer's process has not replied. The process may be
/// stopped.
void Sender::awaitHandshake() {
  const char* why = "connected, but its process does not answer the handshake";
  if (waited_ > kHandshakeTimeout) return close(transport::LossCause::kSilent, why);
  if (waited_ > kHandshakeWarningTime && !std::exchange(isSilent_, true)) {
    owner_.senderStalled(peer_, transport::LossCause::kSilent, why);
  }
}

void Sender::acknowledged(io::Clock::time_point now) {
  progressAt_ = now;
  if (!isStalled_) return;
  isStalled_ = false;
  if (canSend()) owner_.senderWritable(peer_);
}

void Sender::checkStall(io::Clock::time_point now) {
  const auto roundTrips = std::chrono::duration_cast<io::Clock::duration>(
      std::chrono::duration<double>(tcpInfo_.roundTripSeconds * kStallRoundTrips));
  const io::Clock::duration limit = std::max<io::Clock::duration>(kStallTimeout, roundTrips);
  const io::Clock::duration silence = std::min<io::Clock::duration>(now - progressAt_, tcpInfo_.sinceLastAck);
  if (silence <= limit) return;
  const std::string why = formatText("no acknowledgement for {} ms", tcpInfo_.sinceLastAck.count());
  if (state_ == State::kHandshaking || silence > limit + kStallGracePeriod)
    return close(transport::LossCause::kUnreachable, why);
  if (isStalled_) return;
  isStalled_ = true;
  owner_.senderStalled(peer_, transport::LossCause::kStalled, why);
}

void Sender::sampleAcks(io::Clock::time_point now) {
  // Do not ask the kernel about an idle connection. A rank has hundreds of connections, and most of them are idle.
  sampleAcks(now, numAcked_ == numBytes_ ? 0 : socket_.unacknowledgedBytes());
}

void Sender::sampleAcks(io::Clock::time_point now, uint64_t numUnacknowledged) {
  sampledAt_ = now;
  // numBytes_ does not include the bytes of the handshake.
  numAcked_ = numBytes_ == 0 ? 0 : numBytes_ - std::min(numUnacknowledged, numBytes_);
  rate_.update(now, numAcked_, numAcked_ == numBytes_, tcpInfo_.minRoundTripSeconds);
}

void Sender::keepFilled() {
  const io::Clock::time_point now = io::Clock::now();
  if (now - askedAt_ < kSampleInterval) return;
  askedAt_ = now;
  if (socket_.unsentBytes() > 0) return;
  unsentSeconds_ = std::min(kMaxUnsentSeconds, unsentSeconds_ * 2);
  setNotSentLowat();
}

void Sender::setNotSentLowat() {
  const int wanted =
      static_cast<int>(std::clamp<double>(rate_.bytesPerSecond() * unsentSeconds_, kMinUnsentBytes, kMaxUnsentBytes));
  if (wanted > notSentLowat_ / 2 && wanted < notSentLowat_ * 2) return;
  socket_.setNotSentLowat(notSentLowat_ = wanted);
}

uint64_t Sender::numInFlight() {
  sampleAcks(io::Clock::now());
  return numBytes_ - numAcked_;
}

bool Sender::hasLostAllLarge() { return firstLarge_ < numBytes_ && numBytes_ - numInFlight() <= firstLarge_; }

double Sender::carrySeconds(size_t numBytes) {
  const io::Clock::time_point now = io::Clock::now();
  if (now - sampledAt_ >= kSampleInterval) sampleAcks(now);
  const double rate = rate_.bytesPerSecond() > 0 ? rate_.bytesPerSecond() : kUnknownRate;
  const double sinceSample = std::chrono::duration<double>(now - sampledAt_).count();
  const double inFlight = std::max(0.0, static_cast<double>(numBytes_ - numAcked_) - rate * sinceSample);
  return (inFlight + static_cast<double>(numBytes)) / rate;
}

}  // namespace agspeed::comm::tcp
