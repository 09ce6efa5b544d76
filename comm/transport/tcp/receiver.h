// SPDX-License-Identifier: Apache-2.0
// Receiver: the connection that brings one peer's frames over one rail. The kernel writes payloads directly into the
// sink's memory. Only bytes that were read together with a header are copied. A frame with a wrong tag closes the
// connection, because the boundaries of later frames cannot be trusted. Owned by the rail; one thread.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "comm/io/poller.h"
#include "comm/security/sealing.h"
#include "comm/transport/tcp/socket.h"
#include "comm/transport/transport.h"

namespace agspeed::comm::tcp {

class Receiver final : public io::Poller::Handler {
 public:
  class Owner {
   public:
    /// Reports that the receiver has closed its connection. The owner deletes the receiver later, after the receiver's
    /// function has returned.
    virtual void receiverLost(int peer, transport::LossCause cause) = 0;

   protected:
    ~Owner() = default;
  };

  /// `socket` is authenticated, and its next byte begins a frame.
  Receiver(io::Poller& poller, Socket socket, security::Opener opener, transport::Transport::Sink& sink, int peer,
           Owner& owner);
  ~Receiver();

  /// Stops writing to `bytes`: a payload that is arriving there is received into other memory and discarded.
  void cancelReceive(ByteView bytes);
  void ready(uint32_t events) override;

 private:
  /// kStagingBytes: the size of the staging memory, which receives headers and small frames. The receiver copies
  /// payload bytes out of the staging memory, so few bytes of a large payload should get there. Therefore a read that
  /// may end a payload reads at most kFollowingBytes after it, which is enough for the next header.
  static constexpr size_t kStagingBytes = 16 * 1024, kFollowingBytes = 4 * 1024;
  /// ready() returns after it has read this many bytes, so that one peer does not delay the others.
  static constexpr size_t kMaxReadBytes = 1024 * 1024;
  /// Limits of the receive low-water mark. The mark is the number of missing payload bytes, but at most kMaxAwaited,
  /// which are enough work for one wake-up. If fewer than kMinAwaited bytes are missing, every arriving byte wakes the
  /// receiver. These last bytes arrive almost together anyway.
  static constexpr size_t kMinAwaited = 8 * 1024, kMaxAwaited = 64 * 1024;

  /// Reads once from the socket, first into the payload's memory and then into the staging memory. Sets `numAsked` to
  /// the number of bytes for which there was room.
  Moved readOnce(size_t& numAsked);
  /// Sets the receive low-water mark at the end of ready(). The kernel then wakes this process when the payload is
  /// complete or much of it has arrived, not for every few packets.
  void awaitRemaining();
  /// Handles all complete headers and payloads in the staging memory. Returns false if a frame is corrupted.
  bool consume();
  bool consumeHeader();
  bool consumePayload();
  bool isPayloadWhole() const { return placed_ == header_.length; }
  void close(transport::LossCause cause);

  io::Poller& poller_;
  Socket socket_;
  security::Opener opener_;
  transport::Transport::Sink& sink_;
  const int peer_;
  Owner& owner_;
  io::Poller::Id pollId_;
  bool isOpen_ = true;

  std::array<std::byte, kStagingBytes> staging_;
  size_t begin_ = 0;  ///< staging_[begin_, end_) has been read and not consumed
  size_t end_ = 0;

  bool isInPayload_ = false;
  wire::FrameHeader header_;
  std::span<std::byte> target_;  ///< where the payload goes: the sink's memory or discarded_
  size_t placed_ = 0;
  size_t awaited_ = 1;                ///< the receive low-water mark
  std::vector<std::byte> discarded_;  ///< receives a payload that the sink does not want
};

}  // namespace agspeed::comm::tcp
