// SPDX-License-Identifier: Apache-2.0
// TransportMessenger: messages over a transport that acknowledges its frames.
//
//   eager copy        (below 64 KiB) copied and sent at once; the send is finished. The receiver holds those that are
//                     unexpected; it grants each peer a window of them, and credit comes back as they find receives.
//   eager zero-copy   (80 to 128 KiB, as most segments of operations) sent at once, too, from the caller's memory;
//                     finished when acknowledged.
//   rendezvous        (all others, and those beyond the credit) wait for their receiver's CTS, so that they go straight
//                     into its memory and never block what it wants sooner. From the caller's memory; finished when
//                     acknowledged.
//
// A receiver sends the CTS of a rendezvous when it starts to receive; a sender that has none yet sends an RTS, so that
// a receiver which expects another length can say so. Control frames go before eager copies, those before others.
//
// A peer that transfers wait for and that says nothing is probed (liveness_monitor.h), and given up when its process
// does not answer for the time that options allow; should it come back, it is told by a reset.
//
// What is between two ranks is in an Endpoint per peer, made of SendQueue, ReceiveQueue and Credits. Here are the
// messenger's timers and its end.
//
// Threading: as messenger.h says; no thread of its own. Owns the transport; the poller outlives it. The destructor
// hands what is copied and not yet sent to the kernel, for at most a second; unfinished transfers are left alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/io/poller.h"
#include "comm/messaging/completion_queue.h"
#include "comm/messaging/endpoint.h"
#include "comm/messaging/messenger.h"
#include "comm/transport/transport.h"

namespace agspeed::comm {

class TransportMessenger final : public Messenger, private Transport::Sink {
 public:
  /// Requires: transport->capabilities().isAcknowledging.
  TransportMessenger(int rank, int size, std::unique_ptr<Transport> transport, Poller& poller,
                     Clock::duration peerTimeout = std::chrono::seconds(10));
  ~TransportMessenger() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(endpoints_.size()); }
  void send(Transfer& transfer) override;
  void receive(Transfer& transfer) override;
  void cancel(Transfer& transfer, const Status& reason) override;
  void dropCommunicator(uint32_t communicator) override;
  bool probe(int peer, const MessageId& id) const override;
  bool progress(Clock::time_point until) override;
  bool hasUnsent() const override;
  void wake() override { poller_.wake(); }

 private:
  std::span<std::byte> place(int peer, const FrameHeader& header) override { return connectedTo(peer).place(header); }
  void arrived(int peer, const FrameHeader& header) override { connectedTo(peer).arrived(header); }
  void acknowledged(int peer, uint64_t token) override { connectedTo(peer).acknowledged(token); }
  void writable(int peer) override { connectedTo(peer).writable(); }
  void lost(int peer, LossCause cause, const Status& status) override;

  /// The endpoint with the peer, which may not be connected.
  Endpoint& endpointWith(int peer);
  /// The same; the first use connects.
  Endpoint& connectedTo(int peer);
  void check(const Transfer& transfer) const;
  /// A transfer is under way: timers must run.
  void startTimers();
  void tick(Clock::time_point now);
  /// Checks whether those who are waited for are alive. Returns: when to check again.
  Clock::time_point checkPeers(Clock::time_point now);
  /// Until when wake-ups are coalesced: what arrives and ways that have room again wait until then, as all ways on
  /// which something is to be sent stay busy for longer; to wake up for each packet costs more than to handle it. A
  /// past time: no wake-up waits.
  Clock::time_point coalesceUntil() const;
  template <typename Predicate>
  bool isAny(const Predicate& predicate) const;

  const int rank_;
  std::unique_ptr<Transport> transport_;
  Poller& poller_;
  const Clock::duration peerTimeout_;
  CompletionQueue completions_;
  Communicators dropped_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;  ///< by rank; null until used
  std::vector<bool> isWanted_;                        ///< by rank: the transport was told to connect
  Clock::time_point tickedAt_{};
  Clock::time_point nextTick_{};
  Clock::time_point nextCheck_{};
  Clock::time_point wokenAt_{};  ///< when the last wait ended
};

}  // namespace agspeed::comm
