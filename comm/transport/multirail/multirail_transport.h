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
// Every header carries an acknowledgement. Separate ones are sent when AckTracker finds them due, and at the next tick.
// One thread at a time; owns its rails.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport/multirail/ack_tracker.h"
#include "comm/transport/multirail/rail_scheduler.h"
#include "comm/transport/multirail/reachability.h"
#include "comm/transport/multirail/send_window.h"
#include "comm/transport/rail.h"

namespace agspeed::comm {

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
  uint64_t numResent = 0;
  uint64_t numDuplicates = 0;
  uint64_t numAcks = 0;  ///< frames that carried only an acknowledgement
};

class MultirailTransport final : public Transport {
 public:
  /// Requires: at least one rail.
  MultirailTransport(Rails rails, MultirailOptions options);
  ~MultirailTransport() override;

  const MultirailCounters& counters() const { return counters_; }
  /// A rail of this rank has lost or regained its link. Sends a link-state frame to all peers over the other rails;
  /// without it a peer would notice the lost link only by a stall.
  void linkChanged(int rail, bool isUp);

  const Capabilities& capabilities(int peer) const override;
  void attach(Sink& sink) override { sink_ = &sink; }
  void connect(int peer) override { peerOf(peer); }
  bool canSend(int peer) const override;
  void send(int peer, const OutgoingFrame& frame) override;
  void flush(int peer) override;
  void beginTurn() override { isInTurn_ = true; }
  void endTurn() override;
  void cancelSend(int peer, uint64_t token, ByteView payload) override;
  void cancelReceive(int peer, ByteView target) override;
  bool isFlushed() const override;
  Clock::time_point tick(Clock::time_point now) override;
  std::string describeRoute(int peer) const override;
  double coalesceSeconds(int peer) const override;

 private:
  /// Forwards a rail's events together with the rail's number.
  class RailSink;

  struct Peer {
    Peer(const Rails& rails, int rank, const Capabilities& expected);

    const int rank;
    RailScheduler scheduler;
    SendWindow window;
    AckTracker acks;
    Reachability reachability;
    Capabilities capabilities;          ///< the payload lengths follow the rails' speed while frames are in flight
    std::vector<int> linkStatesToTell;  ///< rails of this rank whose link state must still be sent to the peer
    bool isToFlush = false;             ///< in toFlush_: control frames wait, or an acknowledgement is due
  };

  Peer& peerOf(int rank);
  const Peer* findPeer(int rank) const;
  Peer* findPeer(int rank);
  bool canSend(const Peer& peer) const;
  bool mayStillReceive(int rank) const;
  /// Adapts the lengths of the peer's next frames to the speed of its rails.
  void fitPayloads(Peer& peer) const;

  void transmit(Peer& peer, OutgoingFrame frame, int rail);
  void resend(Peer& peer);
  /// Sends a frame without a number, which may get lost. Returns: whether a rail had room for it.
  bool sendUncounted(Peer& peer, FrameHeader header);
  void acknowledge(Peer& peer);
  /// Acknowledges at the end of the turn, or at once outside a turn.
  void acknowledgeSoon(Peer& peer);
  void flushAtEndOfTurn(Peer& peer);
  void tellLinkStates(Peer& peer);
  /// The send time of a frame that is sent now; zero if all rails are reliable, because timeouts are not needed then.
  Clock::time_point sendTime() const { return capabilities_.isReliable ? Clock::time_point() : Clock::now(); }

  std::span<std::byte> place(int rail, int rank, const FrameHeader& header);
  void arrived(int rail, int rank, const FrameHeader& header);
  void takeAcknowledgement(Peer& peer, uint64_t acknowledged);
  /// Makes sure that no rail reads the payload of an acknowledged frame any more.
  void release(const Peer& peer, const InFlightFrame& frame);
  /// Whether the frame is of another epoch or of a lost peer.
  bool isStale(const Peer& peer, const FrameHeader& header) const;

  void writable(int rail, int rank);
  void lost(int rail, int rank, LossCause cause, const Status& status);
  void checkReachability(Peer& peer, Clock::time_point now);
  void markLost(Peer& peer, LossCause cause, const Status& status);

  Rails rails_;
  std::vector<std::unique_ptr<RailSink>> sinks_;
  const MultirailOptions options_;
  Capabilities capabilities_;
  uint32_t maxPayloadBytes_ = 0;  ///< the longest payload that all rails accept; used only if they are fast
  MultirailCounters counters_;
  Sink* sink_ = nullptr;
  std::vector<bool> isLinkUp_;
  bool isInTurn_ = false;
  std::vector<Peer*> toFlush_;  ///< pointers into peers_, which never removes a peer
  std::map<int, Peer> peers_;
};

}  // namespace agspeed::comm
