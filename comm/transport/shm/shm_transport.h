// SPDX-License-Identifier: Apache-2.0
// ShmTransport: sends frames between ranks of one host through shared memory. Each direction of a pair has a ring
// (ring.h). The sender makes the ring and passes its descriptor to the receiver over a local socket. After the
// handshake, the socket only shows the end of the other process, because the kernel then closes it. Frames are
// delivered in order as long as the receiver's process lives, so nothing is ever retransmitted.
//
// A waiting rank sleeps in the poller and is woken by its doorbell (doorbell.h). Sending to a rank that does not sleep
// needs no system call. Frames have no tags and are not encrypted, because only authenticated processes of the same
// user have the memory.
//
// The transport calls the sink for a peer in these cases:
//
//   writable()             the peer was reached for the first time
//   lost(kUnreachable)     shared memory does not lead to the peer, for example because the peer is on another host
//   lost(another cause)    the peer was reached, but its process has ended or does not answer the handshake, or its
//                          frames are corrupted
//
// `lost()` is final, except that kCorrupted may follow kUnreachable, because the peer may still send.
//
// Memory per pair of ranks: two rings (264 KiB), whatever the number of frames in flight. One thread at a time; poller
// and directory outlive the transport.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/io/active_timer.h"
#include "comm/io/poller.h"
#include "comm/io/watch.h"
#include "comm/rendezvous/directory.h"
#include "comm/transport/shm/acceptor.h"
#include "comm/transport/shm/receiver.h"
#include "comm/transport/shm/sender.h"
#include "comm/transport/transport.h"

namespace agspeed::comm::shm {

class ShmTransport final : public transport::Transport, private io::PolledMemory, private Acceptor::Owner {
 public:
  /// Creates a transport that listens at a name derived from the directory's key. Fails as unavailable, with the
  /// reason, if the system provides no shared memory. A peer is lost if its process accepts the connection but does
  /// not answer the handshake within `handshakeTimeout`.
  static StatusOr<std::unique_ptr<ShmTransport>> create(io::Poller& poller, rendezvous::Directory& directory,
                                                        io::Clock::duration handshakeTimeout);
  ~ShmTransport() override;

  const ShmCounters& counters() const { return counters_; }

  /// Accepts a pending connection of the peer, and reads all frames that the peer has sent. Call it when another
  /// transport has noticed that the peer's process has ended.
  void drainPeer(int peer);

  const Capabilities& capabilities(int peer) const override;
  void attach(Sink& sink) override { sink_ = &sink; }
  void connect(int peer) override;
  bool canSend(int peer) const override;
  void send(int peer, const transport::OutgoingFrame& frame) override;
  void flush(int) override {}
  void beginTurn() override {}
  void endTurn() override {}
  void cancelSend(int peer, uint64_t token, ByteView payload) override;
  void cancelReceive(int peer, ByteView target) override;
  bool isFlushed() const override;
  io::Clock::time_point tick(io::Clock::time_point now) override;
  std::string describeRoute(int peer) const override;
  /// Wake-ups for peers in shared memory are never coalesced.
  double coalesceSeconds(int) const override { return 0; }

 private:
  enum class Stage {
    kIdle,         ///< connect() was not called
    kWanted,       ///< waits for the peer's record in the directory, or for the next attempt to connect
    kHandshaking,  ///< connected, and the request was sent
    kUp,
    kUnreachable,  ///< this rank cannot send to the peer; the peer may still send to this rank
    kLost
  };
  /// Both directions of a pair.
  struct PeerConnections {
    explicit PeerConnections(int rank) : peer(rank) {}

    const int peer;
    Stage stage = Stage::kIdle;  ///< state of the direction to the peer
    // During the handshake:
    std::optional<wire::Initiator> initiator;
    std::optional<SharedMemory> ring;
    io::Clock::duration waited{};    ///< time spent waiting for the reply
    std::unique_ptr<Doorbell> bell;  ///< the bell of the peer
    std::unique_ptr<Sender> sender;
    std::unique_ptr<Receiver> receiver;
    std::unique_ptr<io::Watch> outgoing;  ///< watches the socket that this rank has connected
    std::unique_ptr<io::Watch> incoming;  ///< watches the socket that the peer has connected
    std::unique_ptr<io::Watch> process;   ///< watches for the end of the peer's process
  };

  ShmTransport(io::Poller& poller, rendezvous::Directory& directory, io::Clock::duration handshakeTimeout,
               Doorbell bell, io::FileDescriptor listener);

  bool poll() override;
  void arm() override;
  void disarm() override { bell_.setSleeping(false); }
  void accepted(int peer, AcceptedConnection connection) override;

  PeerConnections& connectionsOf(int peer);
  /// Begins the handshake if the directory has the peer's record.
  void attempt(PeerConnections& connections, io::Clock::time_point now);
  Status beginHandshake(PeerConnections& connections, const rendezvous::Peer& peer);
  /// Reads the reply of the handshake. If the reply is valid, the stage becomes kUp, else kUnreachable.
  void readReply(PeerConnections& connections);
  Status finishHandshake(PeerConnections& connections, io::FileDescriptor page, io::FileDescriptor bell,
                         const wire::ConfirmBytes& confirm);
  /// Handles a peer that has closed a socket or whose process has ended. First reads the data that the peer sent
  /// before that.
  void peerEnded(PeerConnections& connections);
  /// Closes the connections that the cause concerns, and reports the loss.
  void fail(PeerConnections& connections, transport::LossCause cause, const std::string& why);
  /// Stops the watch, but keeps it until the next tick, because its function may still be running.
  void retire(std::unique_ptr<io::Watch> watch);

  io::Poller& poller_;
  rendezvous::Directory& directory_;
  const io::Clock::duration handshakeTimeout_;
  Doorbell bell_;
  std::unique_ptr<io::Watch> rung_;  ///< watches the eventfd of bell_, so that a ring wakes the poller
  Acceptor acceptor_;
  io::ActiveTimer active_{io::Clock::now()};
  Sink* sink_ = nullptr;
  std::vector<std::unique_ptr<PeerConnections>> peers_;  ///< peers_[rank]; null until it is used
  std::vector<PeerConnections*> used_;                   ///< the elements of peers_ that are not null
  std::vector<std::unique_ptr<io::Watch>> retired_;
  ShmCounters counters_;
};

}  // namespace agspeed::comm::shm
