// SPDX-License-Identifier: Apache-2.0
// Rail: one path to each peer, for example TCP over one network interface. A rail may lose frames. MultirailTransport
// combines several rails. It sends each frame on the rail with the shortest estimated delivery time, and retransmits
// the
// frames of a lost rail on another rail. It decides from the reports of all rails whether a peer is lost.
//
// A rail reconnects lost connections until the peer is disconnected. Frames keep their order within a connection. The
// capabilities of a rail are the same for all peers. Threading and ownership: see Transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/rendezvous/peer_record.h"
#include "comm/transport/transport.h"

namespace agspeed::comm::transport {

/// Properties and measurements of a rail, for reports and for its peers.
struct RailInfo {
  rendezvous::RailAddress address;  ///< the address at which the rail listens
  std::string device;               ///< the interface that the rail is bound to; empty: none
  /// The recent peak rate of all connections of the rail together; 0: not known. The rail measures it only while at
  /// least two of its connections have bytes in flight, or its only one. Otherwise one slow peer could limit the
  /// result.
  double bytesPerSecond = 0;
  uint64_t numRefused = 0;  ///< connections that were refused because the other end did not prove to be a peer
  bool isHome = true;       ///< whether frames prefer this rail; see RailOptions
};

/// Describes a rail to make.
struct RailOptions {
  rendezvous::RailAddress address;  ///< the address at which the rail listens; port 0: the system chooses one
  std::string device;               ///< the interface to bind to, if the process may; empty: bind to the address only
  size_t index = 0;                 ///< the rail's position among this rank's rails
  size_t numRails = 1;              ///< number of rails of this rank
  bool isHome = true;  ///< frames prefer this rail; other rails take frames that would arrive much later on home rails
};

class Rail : public Transport {
 public:
  /// Closes the connection to a lost peer and does not reconnect. Frames from the peer are still accepted.
  virtual void disconnect(int peer) = 0;
  /// Handles a report of the kernel that the rail's interface has lost or regained its link.
  virtual void linkChanged(bool isUp) = 0;
  /// Handles a link-state frame: the peer's rail number `rail` has lost or regained its link. Does nothing if this rail
  /// connects to another rail of the peer. Otherwise closes a connection that the change has broken, or reconnects at
  /// once.
  virtual void peerLinkChanged(int peer, uint64_t rail, bool isUp) = 0;
  /// Whether the rail may still read payloads that were passed to send() for the peer.
  virtual bool isReading(int peer) const = 0;
  /// Estimates in how many seconds a frame of `numBytes` would arrive if it were sent now; 0: not known. A call never
  /// changes the result of canSend().
  virtual double deliverySeconds(int peer, size_t numBytes) const = 0;
  /// Whether frames of the peer may still arrive, because a connection that the peer made is open.
  virtual bool mayStillReceive(int peer) const = 0;
  /// Returns the shortest round trip so far; 0: not known.
  virtual double minRoundTripSeconds(int peer) const = 0;
  /// Returns the rail's properties and its latest measurements.
  virtual RailInfo info() const = 0;
};

/// The rails of a rank, by number.
using Rails = std::vector<std::unique_ptr<Rail>>;
/// The number that means "no rail".
inline constexpr int kNoRail = -1;

}  // namespace agspeed::comm::transport
