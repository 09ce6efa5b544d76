// SPDX-License-Identifier: Apache-2.0
// MultirailTransport: one reliable transport made of several rails. It numbers every frame, keeps it until the peer
// acknowledges it, and retransmits it on another rail if its rail is lost. The receiver drops duplicates.
//
// Four objects per peer make the decisions, and this class carries them out:
//
//   RailScheduler   which rail takes the next frame
//   SendWindow      which frames are in flight, and which to retransmit
//   AckTracker      which frames have arrived, and when an acknowledgement is due
//   Reachability    which rails lead to the peer, and when the peer is lost
//
// Every header carries an acknowledgement. A separate acknowledgement is sent when it is due (AckTracker), or at the
// next tick if some arrived frames are still unacknowledged. One thread at a time; owns its rails.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/rendezvous/rank_names.h"
#include "comm/transport/multirail/ack_tracker.h"
#include "comm/transport/multirail/rail_scheduler.h"
#include "comm/transport/multirail/reachability.h"
#include "comm/transport/multirail/route_state.h"
#include "comm/transport/multirail/send_window.h"
#include "comm/transport/rail.h"

namespace agspeed::comm::multirail {

struct MultirailOptions {
  int rank = 0;
  uint32_t epoch = 0;
  ReachabilityOptions timeouts;
};

/// Counters since the start, for reports.
struct MultirailCounters {
  struct Rail {
    uint64_t numFrames = 0;
    uint64_t numBytes = 0;
    uint64_t numBytesReceived = 0;
    uint64_t numLosses = 0;  ///< connections that were up and were lost
    uint64_t numStalls = 0;  ///< losses because the peer's kernel was silent; part of numLosses
  };
  std::vector<Rail> rails;
  uint64_t numResent = 0;      ///< frames that were retransmitted
  uint64_t numDuplicates = 0;  ///< arrived frames that had already arrived before
  uint64_t numAcks = 0;        ///< frames that carried only an acknowledgement
};

class MultirailTransport final : public transport::Transport {
 public:
  /// Requires: at least one rail. The names outlive the transport.
  MultirailTransport(transport::Rails rails, const rendezvous::RankNames& names, MultirailOptions options);
  ~MultirailTransport() override;

  const MultirailCounters& counters() const { return counters_; }
  /// Returns the state of the rails to a peer; nullopt if this rank has neither sent to the peer nor received from it.
  std::optional<RouteState> routeTo(int peer) const {
    const Peer* found = findPeer(peer);
    if (found == nullptr) return std::nullopt;
    return routeState(rails_.size(), found->reachability, found->window);
  }
  bool isLinkUp(int rail) const { return isLinkUp_[static_cast<size_t>(rail)]; }
  /// Call it when a rail of this rank has lost or regained its link. Sends a link-state frame to all peers over rails
  /// that can send. Without this frame, a peer would notice the lost link only after its connection stalls.
  void linkChanged(int rail, bool isUp);

  const Capabilities& capabilities(int peer) const override;
  void attach(Sink& sink) override { sink_ = &sink; }
  void connect(int peer) override { peerOf(peer); }
  bool canSend(int peer) const override;
  void send(int peer, const transport::OutgoingFrame& frame) override;
  void flush(int peer) override;
  void beginTurn() override { isInTurn_ = true; }
  void endTurn() override;
  void cancelSend(int peer, uint64_t token, ByteView payload) override;
  void cancelReceive(int peer, ByteView target) override;
  bool isFlushed() const override;
  io::Clock::time_point tick(io::Clock::time_point now) override;
  std::string describeRoute(int peer) const override;
  double coalesceSeconds(int peer) const override;

 private:
  /// Forwards a rail's events together with the rail's number.
  class RailSink;

  struct Peer {
    Peer(const transport::Rails& rails, int rank, const Capabilities& expected);

    const int rank;
    RailScheduler scheduler;
    SendWindow window;
    AckTracker acks;
    Reachability reachability;
    Capabilities capabilities;          ///< fitPayloads() adapts the payload lengths while frames are in flight
    std::vector<int> linkStatesToSend;  ///< rails of this rank whose link state must still be sent to the peer
    bool isToFlush = false;             ///< the peer is in toFlush_: control frames wait, or an acknowledgement is due
  };

  /// Returns the state of a peer. The first call for a peer starts to connect all rails to it.
  Peer& peerOf(int rank);
  const Peer* findPeer(int rank) const;
  Peer* findPeer(int rank);
  bool canSend(const Peer& peer) const;
  bool mayStillReceive(int rank) const;
  /// Adapts the lengths of the peer's next frames to the speed of its rails.
  void fitPayloads(Peer& peer) const;

  /// Sends the frame on the rail, with the current acknowledgement.
  void transmit(Peer& peer, transport::OutgoingFrame frame, int rail);
  /// Retransmits frames of the window while a rail has room.
  void resend(Peer& peer);
  /// Sends a frame without a number. The frame is not retransmitted if it gets lost. Returns false if no rail has room.
  bool sendUnnumbered(Peer& peer, wire::FrameHeader header);
  /// Sends a separate acknowledgement if a rail has room for it.
  void acknowledge(Peer& peer);
  /// Sends a separate acknowledgement at the end of the turn, or at once outside a turn.
  void acknowledgeSoon(Peer& peer);
  /// Makes endTurn() send the peer's control frames, and an acknowledgement if one is due by then.
  void flushAtEndOfTurn(Peer& peer);
  /// Sends the link-state frames that the peer must still get, while a rail has room.
  void sendLinkStates(Peer& peer);
  /// Returns the send time to record for a frame that is sent now. It is zero if all rails are reliable, because their
  /// frames need no timeouts.
  io::Clock::time_point sendTime() const {
    return capabilities_.isReliable ? io::Clock::time_point() : io::Clock::now();
  }

  std::span<std::byte> place(int rail, int rank, const wire::FrameHeader& header);
  void arrived(int rail, int rank, const wire::FrameHeader& header);
  /// Removes the frames with numbers below `acknowledged` from the window and reports them to the sink.
  void takeAcknowledgement(Peer& peer, uint64_t acknowledged);
  /// Makes all rails stop reading the payload of an acknowledged frame.
  void release(const Peer& peer, const InFlightFrame& frame);
  /// Whether the frame belongs to another epoch or comes from a lost peer.
  bool isStale(const Peer& peer, const wire::FrameHeader& header) const;

  void writable(int rail, int rank);
  void lost(int rail, int rank, transport::LossCause cause, const Status& status);
  void checkReachability(Peer& peer, io::Clock::time_point now);
  void markLost(Peer& peer, transport::LossCause cause, const Status& status);

  transport::Rails rails_;
  std::vector<std::unique_ptr<RailSink>> sinks_;
  const rendezvous::RankNames& names_;
  const MultirailOptions options_;
  Capabilities capabilities_;
  uint32_t maxPayloadBytes_ = 0;  ///< the longest payload that all rails accept; used only if all are fast
  MultirailCounters counters_;
  Sink* sink_ = nullptr;
  std::vector<bool> isLinkUp_;
  bool isInTurn_ = false;
  std::vector<Peer*> toFlush_;  ///< pointers into peers_, which never removes a peer
  std::map<int, Peer> peers_;
};

}  // namespace agspeed::comm::multirail
