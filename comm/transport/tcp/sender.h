// SPDX-License-Identifier: Apache-2.0
// Sender: the connection that carries this rank's frames to one peer over one rail. It connects, does the handshake,
// and then writes frames. Frames that the kernel does not accept at once are queued here. Frames that may wait
// (OutgoingFrame::mayWait) are queued, too, so that one system call writes several of them. After the handshake, the
// peer sends nothing on this connection. It acknowledges frames by frames on the connection of the other direction.
// Owned by the rail; one thread at a time.
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

class Sender final : public io::Poller::Handler {
 public:
  class Owner {
   public:
    /// Reports that canSend() has become true.
    virtual void senderWritable(int peer) = 0;
    /// Reports that the peer's kernel acknowledges nothing (kStalled), or that the peer has not answered the handshake
    /// yet (kSilent). A call of senderWritable or senderLost follows.
    virtual void senderStalled(int peer, transport::LossCause cause, const std::string& why) = 0;
    /// Reports that the sender has closed its connection. The owner deletes the sender later, after the sender's
    /// function has returned.
    virtual void senderLost(int peer, transport::LossCause cause, const std::string& why) = 0;

   protected:
    ~Owner() = default;
  };

  /// Takes over `socket`, which is already connecting.
  Sender(io::Poller& poller, Socket socket, wire::Initiator initiator, security::Protection protection, int peer,
         Owner& owner);
  ~Sender();

  bool isEstablished() const { return state_ == State::kUp; }
  bool isUp() const { return state_ == State::kUp && !isStalled_; }
  bool canSend() const { return isUp() && !isFull_ && hasRoom(); }
  /// Whether the kernel has accepted all frames.
  bool isEmpty() const { return numQueued_ == 0; }
  /// Whether no frame must still be written here. This is also true of a stalled connection, because its frames are
  /// retransmitted on other rails.
  bool isFlushed() const { return isStalled_ || isEmpty(); }
  /// Queues a frame. Writes the queue unless the frame may wait. Requires: canSend().
  void send(const transport::OutgoingFrame& frame);
  /// Writes the queued frames, unless the kernel's buffer is full.
  void flush();
  /// Stops reading `bytes`: a queued frame with these bytes continues with a copy of its payload.
  void cancelSend(ByteView bytes);
  /// Checks for acknowledgements, stalls and timeouts. Returns true if it must be called again within a few ms.
  /// Otherwise it need not be called before the next send().
  bool check(io::Clock::time_point now);
  /// Takes a sample. Returns true if large frames (longer than kSmallPacketPayload) were sent, and the peer's kernel
  /// has acknowledged no byte from the first of them on.
  bool hasLostAllLarge();
  /// Whether bytes of a large frame had been acknowledged at the last sample.
  bool hasCarriedLarge() const { return numAcked_ > firstLarge_; }
  /// Closes the connection for a reason that the owner has found, such as a lost carrier, and reports the loss to the
  /// owner as kUnreachable. `why` is the reason, for the log.
  void giveUp(const std::string& why) { close(transport::LossCause::kUnreachable, why); }
  double bytesPerSecond() const { return rate_.bytesPerSecond(); }
  /// Estimates in how many seconds the path will have carried the bytes in flight and then `numBytes` more: (bytes in
  /// flight + numBytes) / rate.
  double carrySeconds(size_t numBytes);
  /// See RateEstimator::age().
  void ageRate(uint64_t numAckedOfAll, double rateOfAll) { rate_.age(numAckedOfAll, rateOfAll); }
  /// Returns the number of bytes written to the kernel since the handshake.
  uint64_t numBytes() const { return numBytes_; }
  /// Takes a sample, and returns the part of numBytes() that the peer's kernel has not acknowledged.
  uint64_t numInFlight();
  /// Returns the shortest round trip so far; 0 before the first sample.
  double minRoundTripSeconds() const { return tcpInfo_.minRoundTripSeconds; }

  void ready(uint32_t events) override;

 private:
  enum class State { kConnecting, kHandshaking, kUp, kClosed };

  void finishConnecting();
  void finishHandshake();
  void readAfterHandshake();
  void write();
  void close(transport::LossCause cause, const std::string& why);
  bool writeSmall(ByteView bytes);
  /// Reports a peer that takes long to answer the handshake, and closes the connection at the timeout.
  void awaitHandshake();
  /// Records that the peer's kernel has acknowledged bytes, or that none are in flight. A stalled connection recovers.
  /// `now`: the current time if bytes are still in flight, else zero.
  void acknowledged(io::Clock::time_point now);
  /// Marks the connection stalled if the peer's kernel has acknowledged nothing for long, and closes it later.
  void checkStall(io::Clock::time_point now);
  /// Both functions take a sample of the bytes that the peer's kernel has acknowledged, and update the rate. The first
  /// function asks the kernel for the number of unacknowledged bytes.
  void sampleAcks(io::Clock::time_point now);
  void sampleAcks(io::Clock::time_point now, uint64_t numUnacknowledged);
  /// Raises the not-sent low-water mark if the kernel has run out of unsent bytes. Call it when a full socket has room
  /// again.
  void keepFilled();
  /// Sets the not-sent low-water mark to rate * unsentSeconds_ bytes. Keeps the old mark if the two differ by less than
  /// a factor of two, because a change costs a system call.
  void setNotSentLowat();

  io::Poller& poller_;
  Socket socket_;
  const wire::Initiator initiator_;
  const security::Protection protection_;
  const int peer_;
  Owner& owner_;
  io::Poller::Id pollId_;
  State state_ = State::kConnecting;
  std::array<std::byte, wire::kReplyBytes> reply_{};
  size_t replySize_ = 0;
  std::optional<security::Sealer> sealer_;

  /// A frame to write: header, tag of the header, payload, tag of the payload.
  struct Queued {
    std::array<std::byte, wire::kHeaderBytes + security::kMaxTagBytes> prefix;
    ByteView payload;
    std::array<std::byte, security::kMaxTagBytes> tag;
    std::vector<std::byte> owned;  ///< the payload, if it is encrypted or its send was cancelled
    size_t numBytes = 0;           ///< size of header, payload and tags together
  };
  static constexpr size_t kMaxQueued = 16;
  /// Returns the i-th of the frames to write.
  Queued& queued(size_t i) { return queue_[(firstQueued_ + i) % kMaxQueued]; }
  /// Whether another frame may be queued. The limit is not recomputed when a sample changes the rate. So if canSend()
  /// was true, it stays true until send(), even if the caller takes a sample in between.
  bool hasRoom() const { return isEmpty() || (numQueued_ < kMaxQueued && queuedBytes_ < maxQueuedBytes_); }
  /// Returns how many bytes may be queued here at the current rate.
  size_t maxQueuedBytes() const;
  void seal(const transport::OutgoingFrame& frame, Queued& queued);
  /// Called with the buffer of a payload that was written. Keeps the larger one of this buffer and spare_ as spare_, so
  /// that the next payload needs no allocation, and frees the other one if it is large.
  void keepSpare(std::vector<std::byte>& owned);

  std::array<Queued, kMaxQueued> queue_;
  std::vector<std::byte>
      spare_;  ///< the largest unused payload buffer. Only one is kept, because a rank has hundreds of senders
  size_t firstQueued_ = 0, numQueued_ = 0;
  size_t queuedBytes_ = 0;     ///< bytes of all queued frames that are not written yet
  size_t maxQueuedBytes_ = 0;  ///< the limit that was computed for the first waiting frame or at the last write
  size_t written_ = 0;         ///< bytes of the first frame that are written
  bool isFull_ = false;        ///< the kernel did not accept all bytes

  // State of check(): timeouts, stalls, and the rate.
  io::ActiveTimer active_;
  io::Clock::duration waited_{};      ///< time spent connecting, then time spent in the handshake
  bool isSilent_ = false;             ///< senderStalled(kSilent) has reported that the handshake takes long
  bool isQuiet_ = false;              ///< a sample found all bytes acknowledged, and none was written since
  io::Clock::time_point progressAt_;  ///< when the peer's kernel last answered; zero while nothing is in flight
  uint64_t bytesAcked_ = 0;
  bool isStalled_ = false;
  int notSentLowat_ = 0;  ///< the not-sent low-water mark, in bytes
  double unsentSeconds_;  ///< how long the unsent bytes in the kernel should last
  SendBufferLimit sendBufferLimit_;
  TcpInfo tcpInfo_;
  RateEstimator rate_;
  uint64_t numBytes_ = 0;
  uint64_t numAcked_ = 0;  ///< the part of numBytes_ that was acknowledged at the last sample
  io::Clock::time_point sampledAt_;
  io::Clock::time_point askedAt_;                               ///< when keepFilled() last asked the kernel
  uint64_t firstLarge_ = std::numeric_limits<uint64_t>::max();  ///< position in numBytes_ of the first large frame
};

}  // namespace agspeed::comm::tcp
