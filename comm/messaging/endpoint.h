// SPDX-License-Identifier: Apache-2.0
// Endpoint: this rank's end of all traffic with one peer: sends (SendQueue), receives (ReceiveQueue), and whether the
// peer's process is alive (LivenessMonitor). When the peer is lost, transfers with it fail, now and later, except
// receives of messages that have arrived completely. If the peer comes back, its probe is answered with kReset.
//
// Not thread-safe. The objects of the context outlive it. The owner of the completion queue notifies transfers.
#pragma once

#include <span>
#include <string>

#include "comm/messaging/credits.h"
#include "comm/messaging/endpoint_context.h"
#include "comm/messaging/liveness_monitor.h"
#include "comm/messaging/receive_queue.h"
#include "comm/messaging/send_queue.h"

namespace agspeed::comm {

class Endpoint {
 public:
  explicit Endpoint(const EndpointContext& context) : context_(context) {}
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // See Messenger.
  void send(Transfer& transfer);
  void receive(Transfer& transfer);
  /// The transfer's bytes are not touched any more. Does not notify the transfer.
  void cancel(Transfer& transfer);
  void dropCommunicator(uint32_t communicator);
  bool probe(const MessageId& id) const { return receives_.probe(id); }
  bool hasUnsent() const { return failure_.isOk() && sends_.isWaiting(); }
  /// Whether frames wait to be handed to the transport.
  bool isSending() const { return failure_.isOk() && (sends_.isWaiting() || sends_.hasZeroCopies()); }
  /// Whether only long messages wait, and enough of them (SendQueue::hasMuch).
  bool hasMuchToSend() const { return !sends_.isWaiting() && sends_.hasMuch(); }

  // See Transport::Sink.
  std::span<std::byte> place(const FrameHeader& header);
  void arrived(const FrameHeader& header);
  void acknowledged(uint64_t token);
  void writable() { pump(); }
  void lost(const Status& status);

  /// Probes the peer if a transfer waits for it and it is silent. The peer is lost when it has been silent for
  /// `timeout`. Returns: whether a transfer waits for it.
  bool checkLiveness(Clock::time_point now, Clock::duration timeout);

  /// The messenger ends: callers' bytes are not touched any more.
  void detachCallers();
  /// Whether eager copies wait to be handed to the transport.
  bool hasUnsentCopies() const { return failure_.isOk() && sends_.hasEagerCopies(); }

 private:
  void pump();
  /// Marks the peer lost because of its own behavior.
  void lose(const std::string& why);

  const EndpointContext context_;
  Status failure_;
  LivenessMonitor liveness_;
  Credits credits_;
  SendQueue sends_{context_, credits_};
  ReceiveQueue receives_{context_, sends_, credits_};
};

}  // namespace agspeed::comm
