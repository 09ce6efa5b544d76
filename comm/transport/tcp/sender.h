// SPDX-License-Identifier: Apache-2.0
// Sender: the connection that carries this rank's frames to one peer over one rail. It connects, does the handshake,
// and then writes frames. Frames that the kernel does not accept at once are queued here; on fast paths frames also
// wait here so that they leave together. Only the handshake comes back on this connection: acknowledgements travel in
// the frames that the peer sends on its own connection. Owned by the rail; one thread at a time.
#pragma once

#include <array>
#include <limits>
#include <optional>
#include <vector>

#include "comm/io/active_timer.h"
#include "comm/io/poller.h"
#include "comm/security/sealing.h"
#include "comm/transport/tcp/rate_estimator.h"
#include "comm/transport/tcp/send_buffer_limit.h"
#include "comm/transport/tcp/socket.h"
#include "comm/transport/transport.h"
#include "comm/wire/handshake.h"

namespace agspeed::comm::tcp {

class Sender final : public Poller::Handler {
 public:
  class Owner {
   public:
    virtual void senderWritable(int peer) = 0;
    /// The peer's kernel acknowledges nothing (kStalled), or the peer has not answered the handshake yet (kSilent).
    /// senderWritable or senderLost follows.
    virtual void senderStalled(int peer, LossCause cause, const std::string& why) = 0;
    /// The sender is closed. The owner deletes it after the sender's function has returned.
    virtual void senderLost(int peer, LossCause cause, const std::string& why) = 0;

   protected:
    ~Owner() = default;
  };

  /// `socket` is already connecting.
  Sender(Poller& poller, Socket socket, Initiator initiator, Protection protection, int peer, Owner& owner);
  ~Sender();

  bool isEstablished() const { return state_ == State::kUp; }
  bool isUp() const { return state_ == State::kUp && !isStalled_; }
  bool canSend() const { return isUp() && !isFull_ && hasRoom(); }
  /// Whether the kernel has accepted all frames.
  bool isEmpty() const { return numQueued_ == 0; }
  /// A stalled connection counts as flushed, because its frames are retransmitted on other rails.
  bool isFlushed() const { return isStalled_ || isEmpty(); }
  void send(const OutgoingFrame& frame);
  /// Writes the frames that wait for others (OutgoingFrame::mayWait).
  void flush();
  /// From now on `bytes` are not read: a queued frame continues with a copy of its payload.
  void cancelSend(ByteView bytes);
  /// Checks for acknowledgements and stalls. Returns: whether it must be called again within a few ms. If not, the next
  /// call may follow the next send().
  bool check(Clock::time_point now);
  /// Whether large frames (longer than kSmallPacketPayload) were sent and no byte from the first of them on was
  /// acknowledged.
  bool hasLostAllLarge();
  /// Whether bytes of a large frame had been acknowledged at the last sample.
  bool hasCarriedLarge() const { return numAcked_ > firstLarge_; }
  /// Closes the connection because the route is known to be cut or is not wanted any more.
  void giveUp(const std::string& why) { close(LossCause::kUnreachable, why); }
  double bytesPerSecond() const { return rate_.bytesPerSecond(); }
  /// Estimated seconds until the path has carried the bytes in flight and then `numBytes` more.
  double carrySeconds(size_t numBytes);
  /// See RateEstimator::age().
  void ageRate(uint64_t numAckedOfAll, double rateOfAll) { rate_.age(numAckedOfAll, rateOfAll); }
  /// Bytes given to the kernel since the handshake.
  uint64_t numBytes() const { return numBytes_; }
  /// The part of numBytes() that the peer's kernel has not acknowledged. Takes a sample.
  uint64_t numUnderWay();
  /// The shortest round trip so far; 0 before the first sample.
  double minRoundTripSeconds() const { return tcpInfo_.minRoundTripSeconds; }

  void ready(uint32_t events) override;

 private:
  enum class State { kConnecting, kHandshaking, kUp, kClosed };

  void finishConnecting();
  void finishHandshake();
  void readAfterHandshake();
  void write();
  void close(LossCause cause, const std::string& why);
  bool writeSmall(ByteView bytes);
  void awaitHandshake();
  void acknowledged(Clock::time_point now);
  void checkStall(Clock::time_point now);
  void look(Clock::time_point now);
  void look(Clock::time_point now, uint64_t numUnacknowledged);
  void keepFilled();
  void setNotSentLowat();

  Poller& poller_;
  Socket socket_;
  const Initiator initiator_;
  const Protection protection_;
  const int peer_;
  Owner& owner_;
  Poller::Id pollId_;
  State state_ = State::kConnecting;
  std::array<std::byte, kReplyBytes> reply_{};
  size_t replySize_ = 0;
  std::optional<Sealer> sealer_;

  /// A frame to write: its header with a tag, its payload, and the payload's tag.
  struct Queued {
    std::array<std::byte, kHeaderBytes + kMaxTagBytes> prefix;
    ByteView payload;
    std::array<std::byte, kMaxTagBytes> tag;
    std::vector<std::byte> owned;  ///< the payload, if it is encrypted or its send was cancelled
    size_t numBytes = 0;           ///< header, payload and tags
  };
  static constexpr size_t kMaxQueued = 16;
  /// The next frames to write, first to last.
  Queued& queued(size_t i) { return queue_[(firstQueued_ + i) % kMaxQueued]; }
  /// Whether another frame may be queued. A sample of the rate does not change the result, so a caller may take one
  /// between canSend() and send().
  bool hasRoom() const { return isEmpty() || (numQueued_ < kMaxQueued && queuedBytes_ < maxQueuedBytes_); }
  size_t maxQueuedBytes() const;
  void seal(const OutgoingFrame& frame, Queued& queued);
  /// Takes the buffer of a payload that was written. Keeps the largest buffer as spare_ and frees other large ones.
  void keepSpare(std::vector<std::byte>& owned);

  std::array<Queued, kMaxQueued> queue_;
  std::vector<std::byte> spare_;  ///< one unused buffer, not one per frame: ranks have hundreds of connections
  size_t firstQueued_ = 0, numQueued_ = 0;
  size_t queuedBytes_ = 0;     ///< bytes left to write
  size_t maxQueuedBytes_ = 0;  ///< the limit that was computed for the first waiting frame or at the last write
  size_t written_ = 0;         ///< bytes of the first frame that are written
  bool isFull_ = false;        ///< the kernel did not accept all bytes

  // Watching.
  ActiveTimer active_;
  Clock::duration waited_{};      ///< time spent connecting, then time spent in the handshake
  bool isSilent_ = false;         ///< the handshake takes long; reported once
  bool isQuiet_ = false;          ///< a sample found all bytes acknowledged, and none was written since
  Clock::time_point progressAt_;  ///< last sign of the peer's kernel; zero while nothing is in flight
  uint64_t bytesAcked_ = 0;
  bool isStalled_ = false;
  int unsentBytes_ = 0;   ///< the not-sent low-water mark
  double unsentSeconds_;  ///< how long that many unsent bytes should last
  SendBufferLimit held_;  ///< limit of unsent and in-flight bytes together
  TcpInfo tcpInfo_;
  RateEstimator rate_;
  uint64_t numBytes_ = 0;
  uint64_t numAcked_ = 0;  ///< acknowledged part of numBytes_ at the last sample
  Clock::time_point lookedAt_;
  Clock::time_point askedAt_;                                   ///< last query whether the kernel has unsent bytes
  uint64_t firstLarge_ = std::numeric_limits<uint64_t>::max();  ///< position in numBytes_ of the first large frame
};

}  // namespace agspeed::comm::tcp
