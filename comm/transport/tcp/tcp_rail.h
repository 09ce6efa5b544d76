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
#include "comm/transport/tcp/acceptor.h"
#include "comm/transport/tcp/receiver.h"
#include "comm/transport/tcp/sender.h"
#include "comm/transport/transport.h"

namespace agspeed::comm::tcp {

struct RailOptions {
  RailAddress address;  ///< port 0: any
  std::string device;   ///< interface that sockets are bound to where that is allowed; empty: by address only
  size_t index = 0;     ///< among this rank's rails
  size_t numRails = 1;  ///< of this rank
};

class TcpRail final : public Transport, public Sender::Owner, public Receiver::Owner, public Acceptor::Owner {
 public:
  /// Listens at once; address() then has the port.
  static StatusOr<std::unique_ptr<TcpRail>> create(RailOptions options, Poller& poller, Directory& directory);

  const RailAddress& address() const { return options_.address; }
  const std::string& device() const { return options_.device; }
  /// Connections refused because they did not prove to be peers.
  uint64_t numRefused() const { return acceptor_.numRefused(); }
  /// What its connections carry together while several have something to carry that no slow peer holds up; 0 when not
  /// known.
  double bytesPerSecond() const { return load_.rate.bestBytesPerSecond(); }
  /// The least seen so far; 0 when not known.
  double leastRoundTripSeconds(int peer) const;
  /// The kernel says that the interface lost or regained its carrier.
  void linkChanged(bool isUp);

  const Capabilities& capabilities() const override;
  void attach(Sink& sink) override { sink_ = &sink; }
  void connect(int peer) override;
  bool canSend(int peer) const override;
  void send(int peer, const OutgoingFrame& frame) override;
  void cancelReceive(int peer, ByteView target) override;
  void cancelSend(int peer, uint64_t token, ByteView payload) override;
  bool isFlushed() const override;
  Clock::time_point tick(Clock::time_point now) override;
  std::string route(int peer) const override;
  bool mayStillReceive(int peer) const override;
  void disconnect(int peer) override;
  void peerLinkChanged(int peer, uint64_t rail, bool hasCarrier) override;
  double deliverySeconds(int peer, size_t numBytes) const override;
  double coalesceSeconds(int peer) const override;

  void writerWritable(int peer) override;
  void writerStalled(int peer, LossCause cause, const std::string& why) override;
  void writerLost(int peer, LossCause cause, const std::string& why) override;
  void readerLost(int peer, LossCause cause) override;
  void accepted(int peer, Socket socket, Opener opener) override;

 private:
  /// The two connections with a peer.
  struct PeerConnections {
    bool isWanted = false;
    int peerRail = -1;  ///< where the peer's end of the writer is, among the peer's rails
    std::string peerAddress;
    std::unique_ptr<Sender> writer;
    std::unique_ptr<Receiver> reader;
    Clock::time_point upSince{};
    bool hasSmallPackets = false;  ///< of the next attempt: perhaps the path drops large ones
    bool hasLostAllLarge = false;  ///< the last connection that carried any, or tried to
    bool isWarned = false;         ///< that large packets are dropped
    bool isBusy = false;           ///< the writer may have bytes under way
    uint64_t numAcked = 0;         ///< of the writer's bytes, at the last look at the load
    Clock::time_point ackedAt{};   ///< the last look that saw progress, or when it became busy
    Clock::time_point nextAttempt{};
    Clock::duration pause{};
  };

  /// What all connections of the rail carry together. Each of them sees only its share, more of it while others rest,
  /// and nothing of what they hold.
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
  void attempt(int peer, PeerConnections& lane, Clock::time_point now);
  void warnOfSmallPackets(int peer, PeerConnections& lane, Clock::time_point now);
  void failAttempt(int peer, PeerConnections& lane, LossCause cause, const Status& status);
  Status describe(int peer, const std::string& what) const;

  RailOptions options_;
  Poller& poller_;
  Directory& directory_;
  Acceptor acceptor_;
  Sink* sink_ = nullptr;
  bool hasCarrier_ = true;
  std::map<int, PeerConnections> lanes_;
  int triedLast_;  ///< the peer to which it tried to connect last, at first this rank
  Load load_;
  // Closed connections whose functions may still be on the stack.
  std::vector<std::unique_ptr<Sender>> closedSenders_;
  std::vector<std::unique_ptr<Receiver>> closedReceivers_;
};

}  // namespace agspeed::comm::tcp
