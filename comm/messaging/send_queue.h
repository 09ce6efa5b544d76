// SPDX-License-Identifier: Apache-2.0
// SendQueue: all that goes to one peer: messages, and control frames about either direction.
//
//   small messages   finished at once: the transport copies them within send(), or a copy waits here until it is
//                    acknowledged
//   medium messages  sent at once from the caller's memory, finished when acknowledged
//   large messages   announced, as are others beyond the credit, unless the peer has asked for them; sent from the
//                    caller's memory when it does, finished when acknowledged
//
// Control frames go before small messages, small before others. Not thread-safe; the pair and the credits outlive it.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <vector>

#include "comm/messaging/credits.h"
#include "comm/messaging/endpoint_context.h"
#include "comm/messaging/message_map.h"

namespace agspeed::comm::framed {

class SendQueue {
 public:
  SendQueue(const EndpointContext& pair, Credits& credits) : context_(pair), credits_(credits) {}

  /// What it cannot send at once goes with pump().
  void start(Transfer& transfer);
  /// Whether the transfer was one of these. Its bytes are not read any more.
  bool cancel(Transfer& transfer);
  /// Queues a control frame.
  void say(FrameKind kind, const MessageId& id = {}, uint64_t total = 0) { control_.push_back({kind, id, total}); }
  /// Hands the transport what it takes.
  void pump();

  /// The peer has received a frame with this token.
  void acknowledged(uint64_t token);
  /// The peer waits for a message of this name and length.
  void asked(const MessageId& id, uint64_t total);

  /// As of Messenger.
  void forget(uint32_t communicator);

  /// Whether what callers take for sent, or what keeps transfers going, waits to be handed to the transport.
  bool isWaiting() const { return !control_.empty() || !small_.empty(); }
  bool hasSmall() const { return !small_.empty(); }
  bool hasLarge() const { return !large_.empty(); }
  /// Names of messages that the peer waits for and nobody has started, and what is still to be told.
  size_t numKept() const { return asked_.size() + control_.size(); }
  /// Whether so much is to be sent that frames are as long as they may be.
  bool hasMuch() const;
  /// One of the unfinished transfers that are in a hurry; null when there is none.
  const Transfer* awaited() const;

  /// The peer is lost: everything ends.
  void fail(const Status& status);
  /// Callers' bytes are not read any more; nobody is told. Copies still go.
  void forgetCallers();

 private:
  struct Control {
    FrameKind kind;
    MessageId id;
    uint64_t total;
  };
  /// A message that has not ended here.
  struct Outgoing {
    std::list<Outgoing>::iterator self;
    Transfer* transfer = nullptr;  ///< null: finished
    MessageId id;
    FrameKind kind = FrameKind::kData;
    std::vector<std::byte> copy;
    ByteView bytes;
    uint64_t numSent = 0;
    uint32_t numUnacknowledged = 0;
    bool isWhollySent = false;
  };

  void startSmall(const Transfer& transfer);
  Outgoing& add(const MessageId& id, ByteView bytes);
  static uint64_t tokenOf(const Outgoing& message) { return reinterpret_cast<uintptr_t>(&message); }
  /// The message's bytes are not read any more.
  void cancelSend(const Outgoing& message);
  void sendSegment(std::deque<Outgoing*>& queue);
  OutgoingFrame frameOf(FrameKind kind, const MessageId& id, uint64_t total);
  /// Bytes of the messages and of what follows them; not counted further than to `enough`.
  static uint64_t numWaiting(const std::deque<Outgoing*>& queue, uint64_t enough);
  /// Of the first message's next frame.
  uint64_t segmentBytes(const std::deque<Outgoing*>& queue) const;

  const EndpointContext& context_;
  Credits& credits_;
  std::list<Outgoing> messages_;
  std::deque<Control> control_;
  std::deque<Outgoing*> small_;    ///< to be sent, first first
  std::deque<Outgoing*> large_;    ///< and medium ones, also first first
  MessageMap<Outgoing*> rtsSent_;  ///< announced, not asked for
  MessageMap<uint64_t> asked_;     ///< lengths that the peer asked for before the send was started
};

}  // namespace agspeed::comm::framed
