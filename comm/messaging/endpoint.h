// SPDX-License-Identifier: Apache-2.0
// Endpoint: this rank's end of all traffic with one peer. It has the sends (SendQueue), the receives (ReceiveQueue),
// and checks whether the peer's process is alive (LivenessMonitor). When the peer is lost, all transfers with it fail,
// and later ones, too. Only receives of messages that have arrived completely still succeed. If the lost peer probes
// this rank later, this rank answers with a kReset frame. The peer then regards this rank as lost, too.
//
// Not thread-safe. The objects of the context outlive it. The owner of the completion queue notifies the owners of
// transfers.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "comm/messaging/credits.h"
#include "comm/messaging/endpoint_context.h"
#include "comm/messaging/liveness_monitor.h"
#include "comm/messaging/receive_queue.h"
#include "comm/messaging/send_queue.h"

namespace agspeed::comm::messaging {

class Endpoint {
 public:
  explicit Endpoint(const EndpointContext& context) : context_(context) {}
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // See Messenger.
  void send(Transfer& transfer);
  void receive(Transfer& transfer);
  /// Cancels the transfer without notifying its owner. Afterwards the transfer's bytes are neither read nor written.
  void cancel(Transfer& transfer);
  void dropCommunicator(uint32_t communicator);
  bool probe(const wire::MessageId& id) const { return receives_.probe(id); }
  uint64_t numBytesMoved(const Transfer& transfer) const {
    return sends_.numBytesMoved(transfer) + receives_.numBytesMoved(transfer);
  }
  bool hasUnsent() const { return !failure_ && sends_.isWaiting(); }
  /// Whether frames wait to be handed to the transport.
  bool isSending() const { return !failure_ && (sends_.isWaiting() || sends_.hasZeroCopies()); }
  /// Whether many bytes from callers' memory wait (SendQueue::hasMuch), and neither control frames nor eager copies
  /// wait.
  bool hasMuchToSend() const { return !sends_.isWaiting() && sends_.hasMuch(); }

  // See Transport::Sink.
  std::span<std::byte> place(const wire::FrameHeader& header);
  void arrived(const wire::FrameHeader& header);
  void acknowledged(uint64_t token);
  void writable() { pump(); }
  void lost(const Status& status);

  /// Probes the peer if it is silent while a transfer waits for it. Marks the peer lost after a silence of `timeout`.
  /// Returns true if a transfer waits for the peer.
  bool checkLiveness(io::Clock::time_point now, io::Clock::duration timeout);

  /// Returns LivenessMonitor::silence().
  io::Clock::duration silence() const { return liveness_.silence(); }

  /// Drops all transfers without notifying their owners. Callers' bytes are neither read nor written afterwards. The
  /// messenger's destructor calls this function.
  void detachCallers();
  /// Whether eager copies wait to be handed to the transport.
  bool hasUnsentCopies() const { return !failure_ && sends_.hasEagerCopies(); }

 private:
  void pump();
  /// Marks the peer lost and fails all transfers with it. `why` says what the peer has done or has failed to do.
  void lose(const std::string& why);

  const EndpointContext context_;
  std::optional<Status> failure_;  ///< why the peer is lost
  LivenessMonitor liveness_;
  Credits credits_;
  SendQueue sends_{context_, credits_};
  ReceiveQueue receives_{context_, sends_, credits_};
};

}  // namespace agspeed::comm::messaging
