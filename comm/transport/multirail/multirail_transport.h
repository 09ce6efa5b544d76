// SPDX-License-Identifier: Apache-2.0
// MultirailTransport: one reliable transport made of several rails. Every frame is numbered, kept until the peer
// acknowledges it, and sent again on another rail when its rail is lost; the receiver drops what it has already.
//
// What is decided for a peer, four objects decide, and this class does what they say:
//
//   RailScheduler   which rail takes the next frame
//   SendWindow      what is in flight, and what is to be sent again
//   AckTracker      what has arrived, and when the peer is to be told
//   Reachability    which rails lead to the peer, and when it is given up
//
// Acknowledgements travel in every header; of their own they are sent when AckTracker finds them due, and at the next
// tick. One thread at a time; owns its rails.
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

/// What has happened so far, for reports.
struct MultirailCounters {
  struct Rail {
    uint64_t numFrames = 0;
    uint64_t numBytes = 0;
    uint64_t numBytesReceived = 0;
    uint64_t numLosses = 0;  ///< of connections that were up
    uint64_t numStalls = 0;  ///< of the losses, those because the peer's kernel was silent
  };
  std::vector<Rail> rails;
  uint64_t numResent = 0;
  uint64_t numDuplicates = 0;
  uint64_t numAcks = 0;  ///< frames that carried nothing else
};

class MultirailTransport final : public Transport {
 public:
  /// Requires: at least one rail.
  MultirailTransport(Rails rails, MultirailOptions options);
  ~MultirailTransport() override;

  const MultirailCounters& counters() const { return counters_; }
  /// A rail of this rank has lost its link, or has it again. Peers are told over the others: nothing else would tell
  /// them but the silence.
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
  /// Hands a rail's events on with the rail's number.
  class RailSink;

  struct Peer {
    Peer(const Rails& rails, int rank, const Capabilities& expected);

    const int rank;
    RailScheduler scheduler;
    SendWindow window;
    AckTracker acks;
    Reachability reachability;
    Capabilities capabilities;          ///< payloads follow the rails while frames are in flight
    std::vector<int> linkStatesToTell;  ///< rails of this rank about whose links the peer must be told
    bool isToFlush = false;             ///< at the end of the turn: control frames wait, or an acknowledgement is due
  };

  Peer& peerOf(int rank);
  const Peer* findPeer(int rank) const;
  Peer* findPeer(int rank);
  bool canSend(const Peer& peer) const;
  bool mayStillReceive(int rank) const;
  /// The lengths of the peer's next frames follow what its rails carry.
  void fitPayloads(Peer& peer) const;

  void transmit(Peer& peer, OutgoingFrame frame, int rail);
  void resend(Peer& peer);
  /// A frame that is not numbered and may get lost. Returns: whether there was room for it.
  bool sendUncounted(Peer& peer, FrameHeader header);
  void acknowledge(Peer& peer);
  /// At the end of the turn, if there is one.
  void acknowledgeSoon(Peer& peer);
  void flushAtEndOfTurn(Peer& peer);
  void tellLinkStates(Peer& peer);
  /// When a frame that is sent now counts as sent. Only rails that lose frames silently are watched by time.
  Clock::time_point sendTime() const { return capabilities_.isReliable ? Clock::time_point() : Clock::now(); }

  std::span<std::byte> place(int rail, int rank, const FrameHeader& header);
  void arrived(int rail, int rank, const FrameHeader& header);
  void takeAcknowledgement(Peer& peer, uint64_t acknowledged);
  /// No rail reads the payload of an acknowledged frame any more.
  void release(const Peer& peer, const InFlightFrame& frame);
  /// Of another epoch, or of a peer that is lost.
  bool isStale(const Peer& peer, const FrameHeader& header) const;

  void writable(int rail, int rank);
  void lost(int rail, int rank, LossCause cause, const Status& status);
  void checkReachability(Peer& peer, Clock::time_point now);
  void markLost(Peer& peer, LossCause cause, const Status& status);

  Rails rails_;
  std::vector<std::unique_ptr<RailSink>> sinks_;
  const MultirailOptions options_;
  Capabilities capabilities_;
  uint32_t maxPayloadBytes_ = 0;  ///< of all rails; frames are as long only where these are quick
  MultirailCounters counters_;
  Sink* sink_ = nullptr;
  std::vector<bool> isLinkUp_;
  bool isInTurn_ = false;
  std::vector<Peer*> toFlush_;  ///< in peers_, of which none is ever removed
  std::map<int, Peer> peers_;
};

}  // namespace agspeed::comm
