// SPDX-License-Identifier: Apache-2.0
// ReceiveQueue: matches what comes from one peer with who waits for it, by name.
//
//   eager        placed where their receive wants them; the unexpected, for which no receive has been started, are held
//   rendezvous   a CTS is sent when their receive is started, or when their RTS comes after that; where the receive
//   takes
//                shorter messages, too, the CTS says so
//
// What is cancelled, dropped or has another length than its receive is thrown away when it comes. Not thread-safe;
// the context, the send queue (for answers) and the credits outlive it.
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

/// Ends the buffer of an unexpected message, which held credit.
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
  /// Whether the transfer was one of these. Its bytes are not written any more.
  bool cancel(Transfer& transfer);

  /// Where the payload of an arriving frame goes; nothing where it is not wanted.
  std::span<std::byte> place(const FrameHeader& header);
  /// A frame of a message has arrived where place() said.
  void arrived(const FrameHeader& header);
  /// A message waits at the peer for its CTS.
  void receivedRts(const FrameHeader& header);

  /// Names of messages that no receive expects, or wants any more.
  size_t numUnexpectedNames() const { return rtsReceived_.size() + discarded_.size(); }
  /// What the peer has done that no intact one does: "it sent ..."; empty: nothing.
  const std::string& violation() const { return violation_; }

  /// As of Messenger.
  void dropCommunicator(uint32_t communicator);

  /// Whether an unexpected message has begun to arrive, or its RTS has.
  bool probe(const MessageId& id) const;
  /// Whether a message of that name is arriving, has arrived or is waited for.
  bool isKnown(const MessageId& id) const { return incoming_.contains(id); }
  /// One of the transfers that are in a hurry; null when there is none.
  const Transfer* awaited() const;

  /// The peer is lost: everything ends but what has arrived whole.
  void fail(const Status& status);
  /// Callers' bytes are not written any more; nobody is notified.
  void detachCallers();

 private:
  /// A message on its way in, or waited for: it has a buffer or a transfer.
  struct Incoming {
    Transfer* transfer = nullptr;                            ///< null while it is unexpected
    std::unique_ptr<std::byte[], ReleaseUnexpected> buffer;  ///< of an unexpected message
    uint64_t total = 0;
    uint64_t numReceived = 0;
    bool isCtsSent = false;
    bool isUpTo = false;  ///< `total` is the most that its receive takes, as nothing of the message has come

    bool isWhole() const { return numReceived >= total; }
    /// Whether a frame brings no more than what is missing.
    bool mayTake(const FrameHeader& header) const { return header.length <= total - numReceived; }
    /// It has so many bytes. Returns: whether that is what is expected.
    bool settle(uint64_t sent) {
      if (std::exchange(isUpTo, false) && sent < total) total = sent;
      return sent == total;
    }
  };
  static constexpr uint64_t kAllBytes = UINT64_MAX;
  /// A message that nobody wants any more and that has not come whole.
  struct Discarded {
    uint64_t left = kAllBytes;  ///< bytes to come
    bool isConsumed = false;    ///< its sender has its credit back, if it needed any
  };

  // A receive is started before its message comes, or after it. Returns: whether the message is still to come.
  bool expect(Transfer& transfer, Incoming& message);
  bool matchUnexpected(Transfer& transfer, Incoming& message);
  /// The message is whole, and its transfer there.
  void finish(const Incoming& message, FrameKind kind);
  void sendCts(const MessageId& id, Incoming& message);
  /// Returns: whether a message of which nothing is known is held for its receive from now on.
  bool holdUnexpected(const FrameHeader& header);
  void failLength(Transfer& transfer, uint64_t sent);
  /// An expected message has another length.
  void refuse(MessageMap<Incoming>::iterator found, uint64_t sent);
  /// Nobody writes any more to where the message goes.
  void cancelReceive(const Incoming& message);
  void consume(uint64_t total);
  void discard(const FrameHeader& header);

  const EndpointContext& context_;
  SendQueue& sends_;
  Credits& credits_;
  MessagePool pool_;
  MessageMap<Incoming> incoming_{&pool_};
  MessageMap<uint64_t> rtsReceived_{&pool_};  ///< lengths of which the RTS came before the receive was started
  MessageMap<Discarded> discarded_{&pool_};
  std::string violation_;
};

}  // namespace agspeed::comm
