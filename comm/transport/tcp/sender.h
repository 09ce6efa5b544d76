// SPDX-License-Identifier: Apache-2.0
// Sender: the connection that carries this rank's frames to one peer over one rail. It connects, proves who it is, and
// then writes frames: what the kernel does not take at once stays here until it does. On quick paths some wait for it,
// so that they leave together. Nothing comes back on it but the handshake; acknowledgements travel in the peer's own
// frames. Owned by the rail; one thread at a time.
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
    /// Nothing is acknowledged any more (kStalled), or the peer has not answered the handshake yet (kSilent).
    /// senderWritable or senderLost follows.
    virtual void senderStalled(int peer, LossCause cause, const std::string& why) = 0;
    /// The sender is closed; it is deleted after it has returned.
    virtual void senderLost(int peer, LossCause cause, const std::string& why) = 0;

   protected:
    ~Owner() = default;
  };

  /// `socket` has begun to connect.
  Sender(Poller& poller, Socket socket, Initiator initiator, Protection protection, int peer, Owner& owner);
  ~Sender();

  bool isEstablished() const { return state_ == State::kUp; }
  bool isUp() const { return state_ == State::kUp && !isStalled_; }
  bool canSend() const { return isUp() && !isFull_ && hasRoom(); }
  /// All frames are with the kernel.
  bool isEmpty() const { return numQueued_ == 0; }
  /// What a stalled connection still holds goes other ways.
  bool isFlushed() const { return isStalled_ || isEmpty(); }
  void send(const OutgoingFrame& frame);
  /// Frames that wait for others leave now.
  void flush();
  /// The sender's bytes are not read any more: a frame that is not written goes on with a copy.
  void cancelSend(ByteView bytes);
  /// Watches for acknowledgements. Returns: whether it wants to be called again in a few ms; else the next send()
  /// tells.
  bool check(Clock::time_point now);
  /// Larger frames than fit any packet were sent, and nothing from the first of them on was acknowledged.
  bool hasLostAllLarge();
  /// Of such frames something was acknowledged at the last look.
  bool hasCarriedLarge() const { return numAcked_ > firstLarge_; }
  /// Gives the connection up: the rail is known to be cut.
  void giveUp(const std::string& why) { close(LossCause::kUnreachable, why); }
  double bytesPerSecond() const { return rate_.bytesPerSecond(); }
  /// Until the path has carried what is under way, and then `numBytes`.
  double carrySeconds(size_t numBytes);
  /// As RateEstimator::age().
  void ageRate(uint64_t numAckedOfAll, double rateOfAll) { rate_.age(numAckedOfAll, rateOfAll); }
  /// Given to the kernel since it is up, and of these those that the peer's has not acknowledged.
  uint64_t numBytes() const { return numBytes_; }
  uint64_t numUnderWay();
  /// Seen so far; 0 before the first look.
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

  /// A frame to write: its header with a tag, its payload, and the tag of that.
  struct Queued {
    std::array<std::byte, kHeaderBytes + kMaxTagBytes> prefix;
    ByteView payload;
    std::array<std::byte, kMaxTagBytes> tag;
    std::vector<std::byte> owned;  ///< the payload where it is not the sender's: encrypted or cancelled
    size_t numBytes = 0;           ///< of all
  };
  static constexpr size_t kMaxQueued = 16;
  /// The next frames to write, first to last.
  Queued& queued(size_t i) { return queue_[(firstQueued_ + i) % kMaxQueued]; }
  /// Whether another frame may wait beside those that do. A look at the rate alone does not change it: who has asked
  /// canSend() may look before send().
  bool hasRoom() const { return isEmpty() || (numQueued_ < kMaxQueued && queuedBytes_ < maxQueuedBytes_); }
  size_t maxQueuedBytes() const;
  void seal(const OutgoingFrame& frame, Queued& queued);
  /// Of the payloads that this connection owns, only one that is large is kept when it was written.
  void keepSpare(std::vector<std::byte>& owned);

  std::array<Queued, kMaxQueued> queue_;
  std::vector<std::byte> spare_;  ///< the largest one that is not used: ranks have hundreds of connections
  size_t firstQueued_ = 0, numQueued_ = 0;
  size_t queuedBytes_ = 0;     ///< left to write
  size_t maxQueuedBytes_ = 0;  ///< as of the first frame that waits, or the last write
  size_t written_ = 0;         ///< bytes of the first frame
  bool isFull_ = false;        ///< the kernel did not take all

  // Watching.
  ActiveTimer active_;
  Clock::duration waited_{};      ///< connecting, then handshake
  bool isSilent_ = false;         ///< in the handshake, for long
  bool isQuiet_ = false;          ///< all was acknowledged at a look, and nothing written since
  Clock::time_point progressAt_;  ///< of the peer's kernel; none while nothing is in flight
  uint64_t bytesAcked_ = 0;
  bool isStalled_ = false;
  int unsentBytes_ = 0;   ///< limit of what may wait in the kernel beyond what is in flight
  double unsentSeconds_;  ///< for how long that shall last
  SendBufferLimit held_;  ///< of both together
  TcpInfo tcpInfo_;
  RateEstimator rate_;
  uint64_t numBytes_ = 0;
  uint64_t numAcked_ = 0;  ///< of these, at the last look
  Clock::time_point lookedAt_;
  Clock::time_point askedAt_;                                   ///< whether the kernel has bytes left to send
  uint64_t firstLarge_ = std::numeric_limits<uint64_t>::max();  ///< where among these the first large frame begins
};

}  // namespace agspeed::comm::tcp
