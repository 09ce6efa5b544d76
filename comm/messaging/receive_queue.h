// SPDX-License-Identifier: Apache-2.0
// ReceiveQueue: matches messages from one peer with receives, by name.
//
//   eager        the payload goes into the memory of its receive; an unexpected message, whose receive has not been
//                started, is held
//   rendezvous   a CTS is sent when the receive is started, or when the RTS arrives after that; the CTS says whether
//                the receive accepts shorter messages, too
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

namespace agspeed::comm {

/// Frees the buffer of an unexpected message and releases its bytes (Credits::releaseUnexpected).
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
  /// Returns: whether the transfer is in this queue. Its bytes are not written any more.
  bool cancel(Transfer& transfer);

  /// Where the payload of an arriving frame goes; an empty span if the frame is not wanted.
  std::span<std::byte> place(const FrameHeader& header);
  /// A frame of a message has arrived; its payload is in the memory that place() returned.
  void arrived(const FrameHeader& header);
  /// An RTS has arrived: the message waits at the peer for its CTS.
  void receivedRts(const FrameHeader& header);

  /// The number of messages whose RTS came before a receive, plus the number of messages to discard.
  size_t numUnexpectedNames() const { return rtsReceived_.size() + discarded_.size(); }
  /// The peer's violation of the protocol, such as "it sent ..."; empty: none.
  const std::string& violation() const { return violation_; }

  /// See Messenger.
  void dropCommunicator(uint32_t communicator);

  /// Whether an unexpected message has begun to arrive, or its RTS has arrived.
  bool probe(const MessageId& id) const;
  /// Whether a message of that name is expected, is arriving or has arrived.
  bool isKnown(const MessageId& id) const { return incoming_.contains(id); }
  /// One of the receives that are not in the background; null if there is none.
  const Transfer* awaited() const;

  /// The peer is lost: ends everything, except unexpected messages that have arrived completely.
  void fail(const Status& status);
  /// Callers' bytes are not written any more. Does not notify the callers.
  void detachCallers();

 private:
  /// A message that is expected or arriving: it has a buffer or a transfer.
  struct Incoming {
    Transfer* transfer = nullptr;                            ///< null while it is unexpected
    std::unique_ptr<std::byte[], ReleaseUnexpected> buffer;  ///< of an unexpected message
    uint64_t total = 0;
    uint64_t numReceived = 0;
    bool isCtsSent = false;
    bool isUpTo = false;  ///< `total` is the most that its receive accepts; the message's length is not known yet

    bool isWhole() const { return numReceived >= total; }
    /// Whether the frame has at most as many bytes as are missing.
    bool mayTake(const FrameHeader& header) const { return header.length <= total - numReceived; }
    /// The message has `sent` bytes. Returns: whether its receive accepts that length.
    bool settle(uint64_t sent) {
      if (std::exchange(isUpTo, false) && sent < total) total = sent;
      return sent == total;
    }
  };
  static constexpr uint64_t kAllBytes = UINT64_MAX;
  /// A message that is not wanted any more and has not arrived completely.
  struct Discarded {
    uint64_t left = kAllBytes;  ///< bytes that have not arrived
    bool isConsumed = false;    ///< its sender's credit was returned, if it used any
  };

  // Start a receive before its message has begun to arrive, or after that. They return whether the message is still
  // incomplete.
  bool expect(Transfer& transfer, Incoming& message);
  bool matchUnexpected(Transfer& transfer, Incoming& message);
  /// The message is complete and has its transfer.
  void finish(const Incoming& message, FrameKind kind);
  void sendCts(const MessageId& id, Incoming& message);
  /// Returns: whether a message with an unknown name may be held for its receive.
  bool holdUnexpected(const FrameHeader& header);
  void failLength(Transfer& transfer, uint64_t sent);
  /// Fails the receive of a message that has another length.
  void refuse(MessageMap<Incoming>::iterator found, uint64_t sent);
  /// The transport writes no byte of the message any more.
  void cancelReceive(const Incoming& message);
  void consume(uint64_t total);
  void discard(const FrameHeader& header);

  const EndpointContext& context_;
  SendQueue& sends_;
  Credits& credits_;
  MessagePool pool_;
  MessageMap<Incoming> incoming_{&pool_};
  MessageMap<uint64_t> rtsReceived_{&pool_};  ///< lengths of messages whose RTS came before their receive
  MessageMap<Discarded> discarded_{&pool_};
  std::string violation_;
};

}  // namespace agspeed::comm
