// SPDX-License-Identifier: Apache-2.0
// SendQueue: sends messages to one peer, and the control frames of both directions. Two kinds of frames do not come
// from here: the transport makes its own, such as acknowledgements, and Endpoint sends resets directly.
//
//   eager copy        for messages shorter than kZeroCopyBytes. The send completes at once: the transport copies the
//                     message within send(), or this class keeps a copy until the message is acknowledged
//   eager zero-copy   for longer messages whose length mayBeEager() allows, if no CTS has arrived for them. The message
//                     is sent at once from the caller's memory. The send completes when the message is acknowledged
//   rendezvous        for all other messages, and if the credit does not suffice. An RTS is sent unless the peer's CTS
//                     has already arrived. After the CTS, the message is sent from the caller's memory. The send
//                     completes when the message is acknowledged
//
// Control frames are sent first, then eager copies, then messages from callers' memory. Not thread-safe; the context
// and the credits outlive it.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <vector>

#include "comm/messaging/credits.h"
#include "comm/messaging/endpoint_context.h"
#include "comm/messaging/message_map.h"

namespace agspeed::comm::messaging {

class SendQueue {
 public:
  SendQueue(const EndpointContext& context, Credits& credits) : context_(context), credits_(credits) {}

  /// Starts a send. Call pump() afterwards to send the frames that this function queues. If the transport copies short
  /// messages, a short message may be sent within the call.
  void start(Transfer& transfer);
  /// Cancels the send if it is in this queue. Afterwards its bytes are not read. Returns false if it is not in this
  /// queue.
  bool cancel(Transfer& transfer);
  /// Queues a control frame for pump(). `total` and `offset` are fields of its header (frame_format.h).
  void queueControl(wire::FrameKind kind, const wire::MessageId& id = {}, uint64_t total = 0, uint64_t offset = 0) {
    control_.push_back({kind, id, total, offset});
  }
  /// Hands frames to the transport while it accepts them.
  void pump();

  /// Records that the peer has received a frame of the message with this token. Control frames have the token 0, which
  /// needs no record. The last acknowledgement of a message completes its send.
  void acknowledged(uint64_t token);
  /// Handles a CTS: the peer has started a receive for the message with this name. The receive takes exactly `total`
  /// bytes, or at most `total` bytes if `isUpTo`.
  void receivedCts(const wire::MessageId& id, uint64_t total, bool isUpTo);

  /// See Messenger.
  void dropCommunicator(uint32_t communicator);

  /// Whether control frames or eager copies wait to be handed to the transport.
  bool isWaiting() const { return !control_.empty() || !eagerCopies_.empty(); }
  bool hasEagerCopies() const { return !eagerCopies_.empty(); }
  bool hasZeroCopies() const { return !zeroCopies_.empty(); }
  /// Returns the number of messages whose CTS has arrived before their send was started, plus the number of waiting
  /// control frames.
  size_t numUnexpectedNames() const { return ctsReceived_.size() + control_.size(); }
  /// Whether frames should have their maximum length, because many bytes from callers' memory wait or will follow
  /// (Transfer::numFollowing).
  bool hasMuch() const;
  /// Returns one of the unfinished sends that are not in the background, or null if there is none.
  const Transfer* awaited() const;

  /// Returns how many bytes of the send were handed to the transport; 0: it is not in this queue.
  uint64_t numBytesMoved(const Transfer& transfer) const;

  /// Fails all unfinished sends with `status`, because the peer is lost, and drops all frames.
  void fail(const Status& status);
  /// Drops all unfinished sends without notifying their owners, so that callers' bytes are not read any more. Eager
  /// copies are still sent.
  void detachCallers();

 private:
  struct Control {
    wire::FrameKind kind;
    wire::MessageId id;
    uint64_t total;
    uint64_t offset;
  };
  /// A CTS of the peer. It states the length of message that the peer's receive accepts.
  struct Cts {
    uint64_t total = 0;
    bool isUpTo = false;

    bool fits(uint64_t sent) const { return isUpTo ? sent <= total : sent == total; }
  };
  /// A message that has not been completely sent and acknowledged.
  struct Outgoing {
    explicit Outgoing(std::pmr::memory_resource* pool) : copy(pool) {}

    std::pmr::list<Outgoing>::iterator self;  ///< the place of this message in messages_
    Transfer* transfer = nullptr;             ///< null: an eager copy, or a send that was cancelled
    wire::MessageId id;
    wire::FrameKind kind = wire::FrameKind::kData;
    std::pmr::vector<std::byte> copy;  ///< the bytes of an eager copy
    ByteView bytes;                    ///< the bytes to send, in `copy` or in the caller's memory
    uint64_t numSent = 0;              ///< bytes that were handed to the transport
    uint32_t numUnacknowledged = 0;    ///< frames in flight
    bool isWhollySent = false;         ///< no frame is left to send, or the send was cancelled
  };

  using Outgoings = std::pmr::deque<Outgoing*>;

  /// Returns the key of a message in started_: all messages of one communicator and step have the same key.
  static wire::MessageId seriesOf(const wire::MessageId& id) { return {id.communicator, id.step, 0}; }
  void startEagerCopy(const Transfer& transfer);
  Outgoing& add(const wire::MessageId& id, ByteView bytes);
  static uint64_t tokenOf(const Outgoing& message) { return reinterpret_cast<uintptr_t>(&message); }
  /// Makes the transport stop reading bytes of the message.
  void cancelSend(const Outgoing& message);
  void sendControl();
  void sendFrame(Outgoings& queue);
  bool isEmpty() const { return !isWaiting() && zeroCopies_.empty(); }
  transport::OutgoingFrame frameOf(wire::FrameKind kind, const wire::MessageId& id, uint64_t total);
  /// Returns the number of unsent bytes of the queued messages, plus the bytes that will follow (Transfer::numFollowing
  /// of the first message). Stops adding once the sum reaches `enough`.
  static uint64_t numWaiting(const Outgoings& queue, uint64_t enough);
  /// Returns the payload length of the next frame of the queue's first message.
  uint64_t nextFrameBytes(const Outgoings& queue) const;

  const EndpointContext& context_;
  Credits& credits_;
  MessagePool pool_;
  std::pmr::list<Outgoing> messages_{&pool_};
  std::pmr::deque<Control> control_{&pool_};
  Outgoings eagerCopies_{&pool_};          ///< eager copies to send, oldest first
  Outgoings zeroCopies_{&pool_};           ///< messages to send from callers' memory: eager zero-copy, or after a CTS
  MessageMap<Outgoing*> rtsSent_{&pool_};  ///< messages that wait for their CTS
  MessageMap<Cts> ctsReceived_{&pool_};    ///< CTSs of messages whose send has not been started
  MessageMap<uint64_t> started_{&pool_};   ///< by seriesOf(): last sequence of a send with mayBeShorter, plus 1
};

}  // namespace agspeed::comm::messaging
