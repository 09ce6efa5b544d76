// SPDX-License-Identifier: Apache-2.0
// Rail: a transport that may lose frames, used beside other rails. MultirailTransport retransmits the frames of a lost
// rail on another one, chooses rails by the speed that they report, and decides by their reports whether a peer is
// lost.
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

namespace agspeed::comm {

/// Facts about a rail, for reports and for its peers.
struct RailInfo {
  RailAddress address;        ///< where it listens
  std::string device;         ///< the interface it is bound to; empty: none
  double bytesPerSecond = 0;  ///< rate of all its connections together while no slow peer limits them; 0: not known
  uint64_t numRefused = 0;    ///< connections refused because the other end did not prove to be a peer
  bool isHome = true;         ///< see RailOptions
};

/// Which rail to make.
struct RailOptions {
  RailAddress address;  ///< where it listens; port 0: any
  std::string device;   ///< the interface to bind to, if the process may; empty: bind to the address only
  size_t index = 0;     ///< among this rank's rails
  size_t numRails = 1;  ///< of this rank
  bool isHome = true;   ///< preferred; other rails take frames that would arrive much later on home rails
};

class Rail : public Transport {
 public:
  /// The peer is lost: closes the connection to it and makes no other. Frames from it are still accepted.
  virtual void disconnect(int peer) = 0;
  /// The kernel reports that the rail's interface has lost or regained its link.
  virtual void linkChanged(bool isUp) = 0;
  /// The peer reports the same about its rail with that number.
  virtual void peerLinkChanged(int peer, uint64_t rail, bool isUp) = 0;
  /// Whether the rail may still read payloads of frames to the peer that were not acknowledged.
  virtual bool isReading(int peer) const { return !canSend(peer); }
  /// Estimated seconds until a frame of `numBytes` would arrive if it were sent now; 0: not known. Does not change
  /// canSend().
  virtual double deliverySeconds(int peer, size_t numBytes) const = 0;
  /// Whether frames that the peer has sent may still arrive: a connection that it made is open.
  virtual bool mayStillReceive(int peer) const = 0;
  /// The shortest round trip so far; 0: not known.
  virtual double minRoundTripSeconds(int peer) const = 0;
  virtual RailInfo info() const = 0;
};

/// The rails of a rank, by number.
using Rails = std::vector<std::unique_ptr<Rail>>;
/// Stands for "no rail".
inline constexpr int kNoRail = -1;

}  // namespace agspeed::comm
