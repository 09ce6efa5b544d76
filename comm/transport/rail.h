// SPDX-License-Identifier: Apache-2.0
// Rail: a transport that may lose frames, used beside others of its kind. MultirailTransport sends what one has lost on
// another, chooses by what rails say of their speed, and gives peers up by what they say of the way to them.
//
// A lost connection is the rail's to make again, until the peer is disconnected. Order holds within a connection. What
// a rail can do is the same for all peers. Threading and ownership: as Transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/rendezvous/peer_record.h"
#include "comm/transport/transport.h"

namespace agspeed::comm {

/// What a rail is, for reports and for its peers.
struct RailInfo {
  RailAddress address;        ///< where it listens
  std::string device;         ///< the interface it is bound to; empty: none
  double bytesPerSecond = 0;  ///< what its connections carry together while no slow peer holds them up; 0: not known
  uint64_t numRefused = 0;    ///< connections that did not prove to be a peer's
  bool isHome = true;         ///< of those that carry first
};

/// Which one to make.
struct RailOptions {
  RailAddress address;  ///< where it listens; port 0: any
  std::string device;   ///< the interface to bind to where that is allowed; empty: by address only
  size_t index = 0;     ///< among this rank's rails
  size_t numRails = 1;  ///< of this rank
  bool isHome = true;   ///< it carries first; others what would take much longer there
};

class Rail : public Transport {
 public:
  /// The peer is given up: no connection to it is wanted any more. What still comes from it is taken in.
  virtual void disconnect(int peer) = 0;
  /// The kernel says that the rail's interface has lost its link, or has it again.
  virtual void linkChanged(bool isUp) = 0;
  /// The peer says so of its rail of that number.
  virtual void peerLinkChanged(int peer, uint64_t rail, bool isUp) = 0;
  /// Whether it may still read payloads of frames to the peer that were not acknowledged.
  virtual bool isReading(int peer) const { return !canSend(peer); }
  /// About how long a frame of that many bytes would take to arrive if it were sent now; 0 when not known. Does not
  /// change canSend().
  virtual double deliverySeconds(int peer, size_t numBytes) const = 0;
  /// Whether what the peer has sent may still arrive: a connection that it made is open.
  virtual bool mayStillReceive(int peer) const = 0;
  /// The least seen so far; 0 when not known.
  virtual double minRoundTripSeconds(int peer) const = 0;
  virtual RailInfo info() const = 0;
};

/// Those of a rank, by number.
using Rails = std::vector<std::unique_ptr<Rail>>;
/// The number of no rail.
inline constexpr int kNoRail = -1;

}  // namespace agspeed::comm
