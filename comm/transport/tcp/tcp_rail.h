// SPDX-License-Identifier: Apache-2.0
// TcpRail: sends frames over TCP between one local address and an address of each peer. A pair of ranks uses two
// connections, one per direction. The sender of a direction makes the connection when it first has something to send.
// So the two ranks need not agree on which of them connects. The sender alone decides when to close a connection and
// make another one.
//
// The rail reconnects after a pause, which doubles with every failure (5 to 500 ms). Only a connection that was up for
// a second resets the pause, so a flapping rail causes few attempts. One thread at a time; poller and directory outlive
// the rail.
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

class TcpRail final : public transport::Rail, public Sender::Owner, public Receiver::Owner, public Acceptor::Owner {
 public:
  /// Makes a rail that listens. Its info() has the port.
  static StatusOr<std::unique_ptr<transport::Rail>> create(transport::RailOptions options, io::Poller& poller,
                                                           rendezvous::Directory& directory);

  const Capabilities& capabilities(int peer) const override;
  void attach(Sink& sink) override { sink_ = &sink; }
  void connect(int peer) override;
  bool canSend(int peer) const override;
  void send(int peer, const transport::OutgoingFrame& frame) override;
  void flush(int peer) override;
  void beginTurn() override {}
  void endTurn() override {}
  void cancelSend(int peer, uint64_t token, ByteView payload) override;
  void cancelReceive(int peer, ByteView target) override;
  bool isFlushed() const override;
  io::Clock::time_point tick(io::Clock::time_point now) override;
  std::string describeRoute(int peer) const override;
  double coalesceSeconds(int peer) const override;

  void disconnect(int peer) override;
  void linkChanged(bool isUp) override;
  void peerLinkChanged(int peer, uint64_t rail, bool isUp) override;
  bool isReading(int peer) const override;
  double deliverySeconds(int peer, size_t numBytes) const override;
  bool mayStillReceive(int peer) const override;
  double minRoundTripSeconds(int peer) const override;
  transport::RailInfo info() const override;

  void senderWritable(int peer) override;
  void senderStalled(int peer, transport::LossCause cause, const std::string& why) override;
  void senderLost(int peer, transport::LossCause cause, const std::string& why) override;
  void receiverLost(int peer, transport::LossCause cause) override;
  void accepted(int peer, Socket socket, security::Opener opener) override;

 private:
  /// The two connections with a peer.
  struct PeerConnections {
    bool isWanted = false;  ///< the rail connects to the peer, again after each loss
    int peerRail = -1;      ///< index, among the peer's rails, of the rail that the sender connects to
    std::string peerAddress;
    std::unique_ptr<Sender> sender;
    std::unique_ptr<Receiver> receiver;
    io::Clock::time_point upSince{};
    bool hasSmallPackets = false;     ///< the next connection gets small packets, because the path may drop large ones
    bool hasLostAllLarge = false;     ///< no large frame arrived on the last connection on which large frames were sent
    bool isWarned = false;            ///< a warning that large packets are dropped was logged
    bool isCorruptionLogged = false;  ///< a warning that the peer's bytes were changed on the way was logged
    bool isBusy = false;              ///< the sender may have queued or unacknowledged bytes
    uint64_t numAcked = 0;            ///< acknowledged bytes of the sender at the last sample of the load
    io::Clock::time_point ackedAt{};  ///< the last sample with new acknowledgements, or when the sender became busy
    io::Clock::time_point nextAttempt{};
    io::Clock::duration pause{};  ///< pause before the next attempt after a failure
  };

  /// The load of all connections of the rail together. A single connection is faster while other connections are idle,
  /// so its rate does not show the rate of the rail. The bytes in flight of other connections also delay a frame.
  struct Load {
    io::Clock::time_point sampledAt{};
    double numInFlight = 0;  ///< bytes in flight at sampledAt, plus bytes given to connections since
    uint64_t numAcked = 0;   ///< bytes acknowledged since the start
    RateEstimator rate;      ///< measured while at least two connections, or the only one, have bytes in flight
  };

  TcpRail(transport::RailOptions options, Socket listener, io::Poller& poller, rendezvous::Directory& directory);
  /// Estimates in how many seconds the rail will have carried the bytes in flight of all connections and then
  /// `numBytes` more; 0: the rate of the rail is not known.
  double carrySeconds(size_t numBytes) const;
  /// Takes a sample of all connections that may have bytes in flight, and updates the load.
  void sampleLoad(io::Clock::time_point now);
  /// Starts to connect to wanted peers without a connection. Returns the latest time for the next call.
  io::Clock::time_point connectWanted(io::Clock::time_point now, int numConnecting);
  /// Starts to connect to the peer if the directory has the peer's record.
  void attempt(int peer, PeerConnections& connections, io::Clock::time_point now);
  /// Logs, once per peer, that the path drops large packets. It does so when a connection with small packets has been
  /// up for a second.
  void warnOfSmallPackets(int peer, PeerConnections& connections, io::Clock::time_point now);
  /// Sets the time of the next attempt, and reports the loss of the connection.
  void failAttempt(int peer, PeerConnections& connections, transport::LossCause cause, const Status& status);
  /// Returns an error about the connection to the peer, which names both ends.
  Status describe(int peer, const std::string& what) const;

  transport::RailOptions options_;
  io::Poller& poller_;
  rendezvous::Directory& directory_;
  Acceptor acceptor_;
  Sink* sink_ = nullptr;
  bool isLinkUp_ = true;
  std::map<int, PeerConnections> peers_;
  int triedLast_;  ///< the peer to which the rail last tried to connect; initially this rank
  Load load_;
  // Closed connections whose functions may still be on the stack.
  std::vector<std::unique_ptr<Sender>> closedSenders_;
  std::vector<std::unique_ptr<Receiver>> closedReceivers_;
};

}  // namespace agspeed::comm::tcp
