// SPDX-License-Identifier: Apache-2.0
// Endpoint: all that is between this rank and one peer: what goes (sends.h), what comes (receives.h), and whether
// the peer's process is alive (pulse.h). When the peer is lost, transfers with it fail, now and later, but receives of
// what has arrived whole; it is told so, should it come back.
//
// Not thread-safe. What the pair refers to outlives it. Transfers are told by whoever owns the completions.
#pragma once

#include <span>
#include <string>

#include "comm/messaging/credits.h"
#include "comm/messaging/endpoint_context.h"
#include "comm/messaging/liveness_monitor.h"
#include "comm/messaging/receive_queue.h"
#include "comm/messaging/send_queue.h"

namespace agspeed::comm::framed {

class Endpoint {
 public:
  explicit Endpoint(const EndpointContext& pair) : context_(pair) {}
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // As of Messenger.
  void send(Transfer& transfer);
  void receive(Transfer& transfer);
  /// The transfer's bytes are not touched any more; nobody is told.
  void cancel(Transfer& transfer);
  void forget(uint32_t communicator);
  bool probe(const MessageId& id) const { return receives_.probe(id); }
  bool hasUnsent() const { return failure_.isOk() && sends_.isWaiting(); }
  /// Whether anything waits to be handed to the transport.
  bool isSending() const { return failure_.isOk() && (sends_.isWaiting() || sends_.hasLarge()); }
  /// Whether that and what follows it is much, and nothing of it short.
  bool hasMuchToSend() const { return !sends_.isWaiting() && sends_.hasMuch(); }

  // As of Transport::Sink.
  std::span<std::byte> place(const FrameHeader& header);
  void arrived(const FrameHeader& header);
  void acknowledged(uint64_t token);
  void writable() { pump(); }
  void lost(const Status& status);

  /// Asks the peer for a sign of life when it owes one, and gives it up when it has been silent for `timeout`. Returns:
  /// whether a transfer waits for it.
  bool lookAtPulse(Clock::time_point now, Clock::duration timeout);

  /// The messenger ends: callers' bytes are not touched any more.
  void forgetCallers();
  /// Whether copies of small messages have yet to be handed to the transport.
  bool hasSmallUnsent() const { return failure_.isOk() && sends_.hasSmall(); }

 private:
  void pump();
  /// The peer itself is the reason why it is lost.
  void lose(const std::string& why);

  const EndpointContext context_;
  Status failure_;
  LivenessMonitor pulse_;
  Credits credits_;
  SendQueue sends_{context_, credits_};
  ReceiveQueue receives_{context_, sends_, credits_};
};

}  // namespace agspeed::comm::framed
