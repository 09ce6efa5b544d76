// SPDX-License-Identifier: Apache-2.0
// ShmTransport: frames between ranks of one host through shared memory. Each direction of a pair has a ring made by its
// sender (ring.h) and a local socket over which it is handed to the receiver; the socket then tells when the other end
// is gone. A frame is delivered, in order, as long as its receiver's process lives, so nothing is ever sent again.
//
// Who waits sleeps in the poller and is woken by its bell (doorbell.h); a rank that does not sleep costs its peers no
// system call. Frames are not sealed: nobody but processes of the same user, proven to be of the job, has the memory.
//
// Reports for a peer: writable() once it is reached; lost() as unreachable when it cannot be reached this way at all
// (it is on another host, say), with another cause when it was reached and is gone, or what it sends is corrupted. Both
// are final but for that.
//
// Memory per pair of ranks: two rings (264 KiB), however much is under way. One thread at a time; poller and directory
// outlive the transport.
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

class ShmTransport final : public Transport, private PolledMemory, private Acceptor::Owner {
 public:
  /// Listens at once, at a name that follows from the directory's key. Unavailable, with the reason, where the system
  /// has no memory to share.
  /// A peer that was connected and does not answer the handshake for `handshakeTimeout` is lost.
  static StatusOr<std::unique_ptr<ShmTransport>> create(Poller& poller, Directory& directory,
                                                        Clock::duration handshakeTimeout);
  ~ShmTransport() override;

  const ShmCounters& counters() const { return counters_; }

  /// Takes in all that the peer has written so far: who ends may have been accepted and read by nobody yet.
  void takeIn(int peer);

  const Capabilities& capabilities(int peer) const override;
  void attach(Sink& sink) override { sink_ = &sink; }
  void connect(int peer) override;
  bool canSend(int peer) const override;
  void send(int peer, const OutgoingFrame& frame) override;
  void cancelSend(int peer, uint64_t token, ByteView payload) override;
  void cancelReceive(int peer, ByteView target) override;
  bool isFlushed() const override;
  Clock::time_point tick(Clock::time_point now) override;
  std::string describeRoute(int peer) const override;
  /// Peers in shared memory are never to wait.
  double coalesceSeconds(int) const override { return 0; }

 private:
  enum class Stage {
    kIdle,
    kWanted,
    kHandshaking,  ///< connected, the request was sent
    kUp,
    kUnreachable,  ///< it may reach this rank all the same
    kLost
  };
  /// Both directions of a pair.
  struct PeerConnections {
    explicit PeerConnections(int rank) : peer(rank) {}

    const int peer;
    Stage stage = Stage::kIdle;  ///< of sending
    // During the handshake.
    std::optional<Initiator> initiator;
    std::optional<SharedMemory> ring;
    Clock::duration waited{};
    std::unique_ptr<Doorbell> bell;  ///< the peer's
    std::unique_ptr<Sender> sender;
    std::unique_ptr<Receiver> receiver;
    std::unique_ptr<Watch> outgoing;
    std::unique_ptr<Watch> incoming;
    std::unique_ptr<Watch> process;  ///< the peer's end
  };

  ShmTransport(Poller& poller, Directory& directory, Clock::duration handshakeTimeout, Doorbell bell,
               FileDescriptor listener);

  bool poll() override;
  void arm() override;
  void disarm() override { bell_.setSleeping(false); }
  void accepted(int peer, AcceptedConnection connection) override;

  PeerConnections& connectionsOf(int peer);
  void attempt(PeerConnections& connections, Clock::time_point now);
  Status beginHandshake(PeerConnections& connections, const Peer& peer);
  void readReply(PeerConnections& connections);
  Status finishHandshake(PeerConnections& connections, FileDescriptor page, FileDescriptor bell,
                         const ConfirmBytes& confirm);
  /// The peer's end of something was closed, or its process ended.
  void gone(PeerConnections& connections);
  void fail(PeerConnections& connections, LossCause cause, const std::string& why);
  /// Takes what functions of these connections, perhaps under way, still use; it ends with the next tick.
  void retire(std::unique_ptr<Watch> watch);

  Poller& poller_;
  Directory& directory_;
  const Clock::duration handshakeTimeout_;
  Doorbell bell_;
  std::unique_ptr<Watch> rung_;
  Acceptor acceptor_;
  ActiveTimer active_{Clock::now()};
  Sink* sink_ = nullptr;
  std::vector<std::unique_ptr<PeerConnections>> peers_;  ///< by rank; null until used
  std::vector<PeerConnections*> used_;
  std::vector<std::unique_ptr<Watch>> retired_;
  ShmCounters counters_;
};

}  // namespace agspeed::comm::shm
