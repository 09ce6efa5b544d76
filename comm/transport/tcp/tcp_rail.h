// SPDX-License-Identifier: Apache-2.0
// TcpRail: frames over TCP between one local address and an address of each peer. A pair of ranks uses two connections,
// one per direction, each made by its sender when it first has something to send; so nobody has to agree on who
// connects, and a sender alone decides when to give a connection up and make another.
//
// A lost connection is made again after a pause that doubles with every failure and shrinks back only when a connection
// has lasted, so that a flapping rail is damped. One thread at a time; poller and directory outlive the rail.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/io/poller.h"
#include "comm/rendezvous/directory.h"
#include "comm/transport/rail.h"
#include "comm/transport/tcp/acceptor.h"
#include "comm/transport/tcp/receiver.h"
#include "comm/transport/tcp/sender.h"

namespace agspeed::comm::tcp {

class TcpRail final : public Rail, public Sender::Owner, public Receiver::Owner, public Acceptor::Owner {
 public:
  /// Listens at once; info() then has the port.
  static StatusOr<std::unique_ptr<Rail>> create(RailOptions options, Poller& poller, Directory& directory);

  const Capabilities& capabilities(int peer) const override;
  void attach(Sink& sink) override { sink_ = &sink; }
  void connect(int peer) override;
  bool canSend(int peer) const override;
  void send(int peer, const OutgoingFrame& frame) override;
  void flush(int peer) override;
  void cancelSend(int peer, uint64_t token, ByteView payload) override;
  void cancelReceive(int peer, ByteView target) override;
  bool isFlushed() const override;
  Clock::time_point tick(Clock::time_point now) override;
  std::string describeRoute(int peer) const override;
  double coalesceSeconds(int peer) const override;

  void disconnect(int peer) override;
  void linkChanged(bool isUp) override;
  void peerLinkChanged(int peer, uint64_t rail, bool isUp) override;
  bool isReading(int peer) const override;
  double deliverySeconds(int peer, size_t numBytes) const override;
  bool mayStillReceive(int peer) const override;
  double minRoundTripSeconds(int peer) const override;
  RailInfo info() const override;

  void senderWritable(int peer) override;
  void senderStalled(int peer, LossCause cause, const std::string& why) override;
  void senderLost(int peer, LossCause cause, const std::string& why) override;
  void receiverLost(int peer, LossCause cause) override;
  void accepted(int peer, Socket socket, Opener opener) override;

 private:
  /// The two connections with a peer.
  struct PeerConnections {
    bool isWanted = false;
    int peerRail = -1;  ///< where the peer's end of the sender is, among the peer's rails
    std::string peerAddress;
    std::unique_ptr<Sender> sender;
    std::unique_ptr<Receiver> receiver;
    Clock::time_point upSince{};
    bool hasSmallPackets = false;  ///< of the next attempt: perhaps the path drops large ones
    bool hasLostAllLarge = false;  ///< the last connection that carried any, or tried to
    bool isWarned = false;         ///< that large packets are dropped
    bool isBusy = false;           ///< the sender may have bytes under way
    uint64_t numAcked = 0;         ///< of the sender's bytes, at the last look at the load
    Clock::time_point ackedAt{};   ///< the last look that saw progress, or when it became busy
    Clock::time_point nextAttempt{};
    Clock::duration pause{};
  };

  /// What all connections of the rail carry together. Each of them sees only its share, more of it while others are
  /// idle, and nothing of what they hold.
  struct Load {
    Clock::time_point lookedAt{};
    double numUnderWay = 0;  ///< bytes then, and given to connections since
    uint64_t numAcked = 0;   ///< bytes ever
    RateEstimator rate;      ///< while several had something to carry
  };

  TcpRail(RailOptions options, Socket listener, Poller& poller, Directory& directory);
  /// Until the path has carried what all connections have under way, and then `numBytes`; 0 when its rate is not known.
  double carrySeconds(size_t numBytes) const;
  /// Looks at all connections that may be busy.
  void sampleLoad(Clock::time_point now);
  /// Connects to those who are wanted. Returns: when to look again at the latest.
  Clock::time_point connectWanted(Clock::time_point now, int numConnecting);
  void attempt(int peer, PeerConnections& connections, Clock::time_point now);
  void warnOfSmallPackets(int peer, PeerConnections& connections, Clock::time_point now);
  void failAttempt(int peer, PeerConnections& connections, LossCause cause, const Status& status);
  Status describe(int peer, const std::string& what) const;

  RailOptions options_;
  Poller& poller_;
  Directory& directory_;
  Acceptor acceptor_;
  Sink* sink_ = nullptr;
  bool isLinkUp_ = true;
  std::map<int, PeerConnections> peers_;
  int triedLast_;  ///< the peer to which it tried to connect last, at first this rank
  Load load_;
  // Closed connections whose functions may still be on the stack.
  std::vector<std::unique_ptr<Sender>> closedSenders_;
  std::vector<std::unique_ptr<Receiver>> closedReceivers_;
};

}  // namespace agspeed::comm::tcp
