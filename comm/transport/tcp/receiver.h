// SPDX-License-Identifier: Apache-2.0
// Receiver: the connection that brings one peer's frames over one rail. Payloads go from the kernel straight to where
// the sink wants them; only what was read together with a header is copied. The first frame that is not sealed as it
// must be ends the connection, because nothing after it can be trusted to be where it seems. Owned by the rail; one
// thread.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "comm/io/poller.h"
#include "comm/security/sealing.h"
#include "comm/transport/tcp/socket.h"
#include "comm/transport/transport.h"

namespace agspeed::comm::tcp {

class Receiver final : public Poller::Handler {
 public:
  class Owner {
   public:
    /// The receiver is closed; it is deleted after it has returned.
    virtual void receiverLost(int peer, LossCause cause) = 0;

   protected:
    ~Owner() = default;
  };

  /// `socket` is authenticated; the next byte is that of a frame.
  Receiver(Poller& poller, Socket socket, Opener opener, Transport::Sink& sink, int peer, Owner& owner);
  ~Receiver();

  void cancelReceive(ByteView bytes);
  void ready(uint32_t events) override;

 private:
  /// Room for small frames, and of it for what follows a payload in one read: the next header, and little of a large
  /// frame, as that is copied.
  static constexpr size_t kStagingBytes = 16 * 1024, kFollowingBytes = 4 * 1024;
  /// Read at most this much at a time, so that no peer keeps the others waiting.
  static constexpr size_t kTurnBytes = 1024 * 1024;
  /// Of what a payload still lacks: so little comes at once in any case, and with so much there is enough to do.
  static constexpr size_t kMinAwaited = 8 * 1024, kMaxAwaited = 64 * 1024;

  Moved readOnce(size_t& numAsked);
  /// Is not woken for every few packets of a long payload, but when its end has come or much of it. After each turn.
  void awaitRemaining();
  bool consume();
  bool consumeHeader();
  bool consumePayload();
  bool isPayloadWhole() const { return placed_ == header_.length; }
  void close(LossCause cause);

  Poller& poller_;
  Socket socket_;
  Opener opener_;
  Transport::Sink& sink_;
  const int peer_;
  Owner& owner_;
  Poller::Id pollId_;
  bool isOpen_ = true;

  std::array<std::byte, kStagingBytes> staging_;
  size_t begin_ = 0;  ///< staging_[begin_, end_) has been read and not consumed
  size_t end_ = 0;

  bool isInPayload_ = false;
  FrameHeader header_;
  std::span<std::byte> target_;  ///< of the payload: the sink's or discarded_
  size_t placed_ = 0;
  size_t awaited_ = 1;  ///< bytes from which on the kernel says that there are some
  std::vector<std::byte> discarded_;
};

}  // namespace agspeed::comm::tcp
