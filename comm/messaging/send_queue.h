// SPDX-License-Identifier: Apache-2.0
// SendQueue: all frames to one peer: messages, and control frames about either direction.
//
//   eager copy        finishes at once: the transport copies the message within send(), or a copy is kept here until it
//                     is acknowledged
//   eager zero-copy   sent at once from the caller's memory, finishes when acknowledged
//   rendezvous        also used for messages beyond the credit: an RTS is sent, unless the peer's CTS has arrived; the
//                     message is sent from the caller's memory after the CTS, and finishes when acknowledged
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

namespace agspeed::comm {

class SendQueue {
 public:
  SendQueue(const EndpointContext& context, Credits& credits) : context_(context), credits_(credits) {}

  /// Starts a send; pump() sends the frames that do not leave at once.
  void start(Transfer& transfer);
  /// Returns: whether the transfer is in this queue. Its bytes are not read any more.
  bool cancel(Transfer& transfer);
  /// Queues a control frame.
  void queueControl(FrameKind kind, const MessageId& id = {}, uint64_t total = 0, uint64_t offset = 0) {
    control_.push_back({kind, id, total, offset});
  }
  /// Hands frames to the transport while it accepts them.
  void pump();

  /// The peer has received a frame with this token.
  void acknowledged(uint64_t token);
  /// The peer expects a message with this name and exactly `total` bytes; at most `total` bytes if `isUpTo`.
  void receivedCts(const MessageId& id, uint64_t total, bool isUpTo);

  /// See Messenger.
  void dropCommunicator(uint32_t communicator);

  /// Whether control frames or eager copies wait to be handed to the transport.
  bool isWaiting() const { return !control_.empty() || !eagerCopies_.empty(); }
  bool hasEagerCopies() const { return !eagerCopies_.empty(); }
  bool hasZeroCopies() const { return !zeroCopies_.empty(); }
  /// The number of messages whose CTS came before a send, plus the number of waiting control frames.
  size_t numUnexpectedNames() const { return ctsReceived_.size() + control_.size(); }
  /// Whether enough bytes from callers' memory wait or follow for frames of maximum length.
  bool hasMuch() const;
  /// One of the unfinished sends that are not in the background; null if there is none.
  const Transfer* awaited() const;

  /// The peer is lost: ends everything.
  void fail(const Status& status);
  /// Callers' bytes are not read any more. Does not notify the callers. Copies are still sent.
  void detachCallers();

 private:
  struct Control {
    FrameKind kind;
    MessageId id;
    uint64_t total;
    uint64_t offset;
  };
  /// A CTS of the peer.
  struct Cts {
    uint64_t total = 0;
    bool isUpTo = false;

    bool fits(uint64_t sent) const { return isUpTo ? sent <= total : sent == total; }
  };
  /// A message that has not ended here.
  struct Outgoing {
    explicit Outgoing(std::pmr::memory_resource* pool) : copy(pool) {}

    std::pmr::list<Outgoing>::iterator self;
    Transfer* transfer = nullptr;  ///< null: finished
    MessageId id;
    FrameKind kind = FrameKind::kData;
    std::pmr::vector<std::byte> copy;
    ByteView bytes;
    uint64_t numSent = 0;
    uint32_t numUnacknowledged = 0;
    bool isWhollySent = false;
  };

  using Outgoings = std::pmr::deque<Outgoing*>;

  /// The key of the message's communicator and step in started_.
  static MessageId seriesOf(const MessageId& id) { return {id.communicator, id.step, 0}; }
  void startEagerCopy(const Transfer& transfer);
  Outgoing& add(const MessageId& id, ByteView bytes);
  static uint64_t tokenOf(const Outgoing& message) { return reinterpret_cast<uintptr_t>(&message); }
  /// The transport reads no byte of the message any more.
  void cancelSend(const Outgoing& message);
  void sendControl();
  void sendFrame(Outgoings& queue);
  bool isEmpty() const { return !isWaiting() && zeroCopies_.empty(); }
  OutgoingFrame frameOf(FrameKind kind, const MessageId& id, uint64_t total);
  /// Unsent bytes of the queued messages and bytes that follow them (Transfer::numFollowing), counted up to `enough`.
  static uint64_t numWaiting(const Outgoings& queue, uint64_t enough);
  /// Payload length of the first message's next frame.
  uint64_t nextFrameBytes(const Outgoings& queue) const;

  const EndpointContext& context_;
  Credits& credits_;
  MessagePool pool_;
  std::pmr::list<Outgoing> messages_{&pool_};
  std::pmr::deque<Control> control_{&pool_};
  Outgoings eagerCopies_{&pool_};          ///< to send, oldest first
  Outgoings zeroCopies_{&pool_};           ///< to send from callers' memory: eager zero-copy and cleared to send
  MessageMap<Outgoing*> rtsSent_{&pool_};  ///< waiting for their CTS
  MessageMap<Cts> ctsReceived_{&pool_};    ///< of messages whose send has not been started
  MessageMap<uint64_t> started_{&pool_};   ///< by communicator and step, for mayBeShorter: the next sequence to start
};

}  // namespace agspeed::comm
