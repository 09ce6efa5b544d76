// SPDX-License-Identifier: Apache-2.0
// TransportMessenger: messages over a transport that acknowledges its frames.
//
//   eager copy        below 64 KiB. The message is copied and sent at once, which finishes the send. The receiver holds
//                     unexpected messages. Each peer has a window of credit for such messages. The credit of a message
//                     returns to its sender when the message is matched with a receive.
//   eager zero-copy   80 to 128 KiB, the size of most segments of operations. The message is sent at once from the
//                     caller's memory and uses credit, too. The send finishes when the whole message is acknowledged.
//   rendezvous        all other messages, and messages beyond the credit. The sender waits for the receiver's CTS. The
//                     bytes then go straight from the caller's memory into the receiver's, and do not delay messages
//                     that the receiver needs sooner. The send finishes when the whole message is acknowledged.
//
// A receiver sends the CTS of a rendezvous when it starts to receive. A sender without a CTS sends an RTS, so that a
// receiver that expects another length can fail its receive. Control frames are sent first, then eager copies, then all
// other messages.
//
// A silent peer is probed while transfers wait for it (liveness_monitor.h). The peer is lost if its process does not
// answer within the peer timeout. If the lost peer sends a probe later, this rank answers with a reset.
//
// The state between two ranks is in an Endpoint per peer, made of SendQueue, ReceiveQueue and Credits. This class
// implements the messenger's timers and its shutdown.
//
// Threading: see messenger.h; no thread of its own. Owns the transport; the poller and the names outlive it. The
// destructor gives copied messages to the kernel, for at most a second, and does not notify unfinished transfers.
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

namespace agspeed::comm::messaging {

class TransportMessenger final : public Messenger, private transport::Transport::Sink {
 public:
  /// Requires: transport->capabilities().isAcknowledging.
  TransportMessenger(int rank, int size, const rendezvous::RankNames& names,
                     std::unique_ptr<transport::Transport> transport, io::Poller& poller,
                     io::Clock::duration peerTimeout = std::chrono::seconds(10));
  ~TransportMessenger() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(endpoints_.size()); }
  void send(Transfer& transfer) override;
  void receive(Transfer& transfer) override;
  void cancel(Transfer& transfer, const Status& reason) override;
  void dropCommunicator(uint32_t communicator) override;
  bool probe(int peer, const wire::MessageId& id) const override;
  uint64_t numBytesMoved(const Transfer& transfer) const override;
  bool progress(io::Clock::time_point until) override;
  bool hasUnsent() const override;
  // The next four functions return defaults. NetworkMessenger wraps this class and returns the real values, because it
  // has the rails and the host.
  double bytesPerSecond() const override { return 0; }
  bool isRemote(int) const override { return true; }
  double roundTripSeconds(int) const override { return 0; }
  uint32_t host() const override { return 0; }
  void wake() override { poller_.wake(); }
  /// Returns for how long the peer has been silent while transfers waited for it.
  io::Clock::duration silence(int peer) const;

 private:
  std::span<std::byte> place(int peer, const wire::FrameHeader& header) override {
    return connectedTo(peer).place(header);
  }
  void arrived(int peer, const wire::FrameHeader& header) override { connectedTo(peer).arrived(header); }
  void acknowledged(int peer, uint64_t token) override { connectedTo(peer).acknowledged(token); }
  void writable(int peer) override { connectedTo(peer).writable(); }
  void lost(int peer, transport::LossCause cause, const Status& status) override;

  /// Returns the endpoint of the peer without connecting to the peer.
  Endpoint& endpointWith(int peer);
  /// Returns the endpoint of the peer. The first call for a peer starts to connect to it.
  Endpoint& connectedTo(int peer);
  void check(const Transfer& transfer) const;
  /// Makes the next tick and the next liveness check come soon, because a transfer has started.
  void startTimers();
  void tick(io::Clock::time_point now);
  /// Checks the liveness of the peers that transfers wait for. Returns the time of the next check.
  io::Clock::time_point checkPeers(io::Clock::time_point now);
  /// Returns the time until which wake-ups are coalesced; a past time: wake-ups are not coalesced. Wake-ups are
  /// coalesced if this rank has much to send, and if all routes that it uses stay busy until the returned time.
  /// Arriving frames then wait until this time. This saves work, because a wake-up per packet costs more than handling
  /// the packet.
  io::Clock::time_point coalesceUntil() const;
  template <typename Predicate>
  bool isAny(const Predicate& predicate) const;

  const int rank_;
  const rendezvous::RankNames& names_;
  std::unique_ptr<transport::Transport> transport_;
  io::Poller& poller_;
  const io::Clock::duration peerTimeout_;
  CompletionQueue completions_;
  Communicators dropped_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;  ///< endpoints_[rank]; null until it is used
  std::vector<bool> isWanted_;                        ///< isWanted_[rank]: Transport::connect() was called
  io::Clock::time_point tickedAt_{};
  io::Clock::time_point nextTick_{};
  io::Clock::time_point nextCheck_{};
  io::Clock::time_point wokenAt_{};  ///< when the poller last returned
};

}  // namespace agspeed::comm::messaging
