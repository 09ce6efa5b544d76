// SPDX-License-Identifier: Apache-2.0
// ReceiveQueue: matches messages from one peer with receives, by name.
//
//   eager        the payload goes into the memory of its receive. An unexpected message, whose receive has not been
//                started, is held in a buffer
//   rendezvous   a CTS is sent when the receive is started, if the receive has the length of a rendezvous or if an
//                RTS has arrived. Otherwise it is sent when the RTS arrives. The CTS states whether the receive accepts
//                shorter messages
//
// A message that was cancelled or dropped, or whose length its receive does not accept, is discarded when it arrives.
// Not thread-safe; the context, the send queue (for answers) and the credits outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "comm/messaging/credits.h"
#include "comm/messaging/endpoint_context.h"
#include "comm/messaging/message_map.h"
#include "comm/messaging/send_queue.h"

namespace agspeed::comm::messaging {

/// Frees the buffer that holds an unexpected message and releases its bytes (Credits::releaseUnexpected).
struct ReleaseUnexpected {
  void operator()(std::byte* buffer) const {
    std::default_delete<std::byte[]>()(buffer);
    credits->releaseUnexpected(numBytes);
  }
  Credits* credits = nullptr;
  uint64_t numBytes = 0;
};

class ReceiveQueue {
 public:
  ReceiveQueue(const EndpointContext& context, SendQueue& sends, Credits& credits)
      : context_(context), sends_(sends), credits_(credits) {}

  void start(Transfer& transfer);
  /// Cancels the receive if it is in this queue. Afterwards its bytes are not written. Returns false if it is not in
  /// this queue.
  bool cancel(Transfer& transfer);

  /// Returns the memory for the payload of an arriving frame, or an empty span if the frame is not wanted. Reserves a
  /// buffer when an unexpected message begins to arrive.
  std::span<std::byte> place(const wire::FrameHeader& header);
  /// Handles a frame of a message. Its payload is in the memory that place() returned. The last frame of a message
  /// completes the receive.
  void arrived(const wire::FrameHeader& header);
  /// Handles an RTS: the peer waits for a CTS before it sends the message.
  void receivedRts(const wire::FrameHeader& header);

  /// Returns the number of messages whose RTS has arrived before their receive was started, plus the number of messages
  /// to discard. Endpoint limits this number, because each of these messages takes memory.
  size_t numUnexpectedNames() const { return rtsReceived_.size() + discarded_.size(); }
  /// Returns how the peer has violated the protocol, such as "it sent ...", or an empty text if it has not.
  const std::string& violation() const { return violation_; }

  /// See Messenger.
  void dropCommunicator(uint32_t communicator);

  /// Whether an unexpected message has begun to arrive, or its RTS has arrived.
  bool probe(const wire::MessageId& id) const;
  /// Whether a message of that name is expected, is arriving, or has arrived unexpectedly.
  bool isKnown(const wire::MessageId& id) const { return incoming_.contains(id); }
  /// Returns one of the started receives that are not in the background, or null if there is none.
  const Transfer* awaited() const;

  /// Returns how many bytes of the receive have arrived; 0: it is not in this queue.
  uint64_t numBytesMoved(const Transfer& transfer) const;

  /// Fails all receives with `status`, because the peer is lost. Drops all messages except unexpected messages that
  /// have arrived completely.
  void fail(const Status& status);
  /// Drops all receives without notifying their owners, so that callers' bytes are not written any more.
  void detachCallers();

 private:
  /// A message that is expected, is arriving, or has arrived unexpectedly. It has a transfer, a buffer or both.
  struct Incoming {
    Transfer* transfer = nullptr;  ///< the message's receive; null while the message is unexpected
    std::unique_ptr<std::byte[], ReleaseUnexpected> buffer;  ///< holds an unexpected message
    uint64_t total = 0;                                      ///< length of the message
    uint64_t numReceived = 0;                                ///< bytes that have arrived
    bool isCtsSent = false;
    bool isUpTo = false;  ///< `total` is the receive's length, and the message may be shorter

    bool isWhole() const { return numReceived >= total; }
    /// Whether the frame has at most as many bytes as are missing.
    bool mayTake(const wire::FrameHeader& header) const { return header.length <= total - numReceived; }
    /// Compares the receive's length with `sent`, the length of the message in a header from the sender. If the receive
    /// accepts shorter messages, the first header determines `total`. Returns false if the receive does not accept a
    /// message of `sent` bytes.
    bool settle(uint64_t sent) {
      if (std::exchange(isUpTo, false) && sent < total) total = sent;
      return sent == total;
    }
  };
  /// Discarded::left of a message that has not begun to arrive, so its length is not known.
  static constexpr uint64_t kAllBytes = UINT64_MAX;
  /// A message that is not wanted any more and has not arrived completely.
  struct Discarded {
    uint64_t left = kAllBytes;  ///< bytes that have not arrived
    bool isConsumed = false;    ///< the credit that the message used has been returned to its sender
  };

  // Both functions start a receive. expect() is for a message that has not begun to arrive, matchUnexpected() for one
  // that has. Both return true if the receive still waits for bytes, and false if it has completed or failed.
  bool expect(Transfer& transfer, Incoming& message);
  bool matchUnexpected(Transfer& transfer, Incoming& message);
  /// Completes the receive of a message that has arrived completely. `kind`: the kind of the message's frames.
  void finish(const Incoming& message, wire::FrameKind kind);
  /// Queues the CTS of a receive, unless it has been queued before.
  void sendCts(const wire::MessageId& id, Incoming& message);
  /// Reserves buffer space for a message for which no receive has been started. Returns false if the message must not
  /// be held, because it is not eager, is discarded, or exceeds the space that the protocol allows.
  bool holdUnexpected(const wire::FrameHeader& header);
  /// Fails a receive because its message has `sent` bytes.
  void failLength(Transfer& transfer, uint64_t sent);
  /// Fails the receive of `found` because its message has `sent` bytes, and stops receiving the message.
  void refuse(MessageMap<Incoming>::iterator found, uint64_t sent);
  /// Makes the transport stop writing bytes of the message.
  void cancelReceive(const Incoming& message);
  /// Returns the credit of an eager message to its sender.
  void consume(uint64_t total);
  /// Handles a frame of a message that is discarded.
  void discard(const wire::FrameHeader& header);

  const EndpointContext& context_;
  SendQueue& sends_;
  Credits& credits_;
  MessagePool pool_;
  MessageMap<Incoming> incoming_{&pool_};
  MessageMap<uint64_t> rtsReceived_{&pool_};  ///< lengths of messages whose RTS came before the receive
  MessageMap<Discarded> discarded_{&pool_};
  std::string violation_;
};

}  // namespace agspeed::comm::messaging
