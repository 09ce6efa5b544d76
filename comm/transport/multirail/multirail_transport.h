// SPDX-License-Identifier: Apache-2.0
// MultirailTransport: one reliable transport made of several rails. Every frame goes to a rail that can take it now,
// starting with another rail each time; rails take more as the network drains them, so quick rails carry more than slow
// ones without being measured. Small frames take the rail where they arrive first.
//
// A frame is counted, kept until the peer acknowledges it, and sent again on another rail when its rail is lost. The
// receiver drops what it has already. A peer is given up when nobody listens on any of its rails any more (its process
// ended), its own connections have ended, too, and nothing that it sent before has arrived for a few ticks; when no
// rail has led to it for peerTimeout, or for connectTimeout where nobody was ever found.
//
// Acknowledgements travel in every header; of their own they are sent when a large message is complete, when many bytes
// are waiting for one, and after a while. One thread at a time; owns its rails.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport/multirail/receive_window.h"
#include "comm/transport/transport.h"

namespace agspeed::comm {

struct MultirailOptions {
  int rank = 0;
  uint32_t epoch = 0;
  std::chrono::milliseconds peerTimeout{10000};    ///< without any rail that leads to the peer
  std::chrono::milliseconds connectTimeout{1000};  ///< the same, where nobody was ever found
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
  MultirailTransport(std::vector<std::unique_ptr<Transport>> rails, MultirailOptions options);
  ~MultirailTransport() override;

  const MultirailCounters& counters() const { return counters_; }
  /// A rail of this rank has lost its carrier, or has it again. Peers are told over the others: nothing else would tell
  /// them but the silence.
  void linkChanged(int rail, bool hasCarrier);

  const Capabilities& capabilities() const override { return capabilities_; }
  void attach(Sink& sink) override { sink_ = &sink; }
  const Capabilities& capabilitiesFor(int peer) const override;
  void connect(int peer) override;
  bool canSend(int peer) const override;
  void send(int peer, const OutgoingFrame& frame) override;
  void cancelReceive(int peer, ByteView target) override;
  void cancelSend(int peer, uint64_t token, ByteView payload) override;
  bool isFlushed() const override;
  Clock::time_point tick(Clock::time_point now) override;
  std::string route(int peer) const override;
  bool mayStillReceive(int peer) const override;
  double coalesceSeconds(int peer) const override;

 private:
  static constexpr int kNoRail = -1;

  /// Hands a rail's events on with the rail's number.
  class RailSink;

  /// A frame on its way.
  struct InFlightFrame {
    OutgoingFrame frame;
    int rail = kNoRail;     ///< where it was sent; kNoRail: to be sent again
    int stalled = kNoRail;  ///< then the rail that may deliver it all the same
    Clock::time_point sentAt{};
  };
  struct Placement {
    uint64_t number = 0;
    uint32_t attempt = 0;
    ByteView target;
  };
  enum class Stage { kNew, kAlive, kDead };

  struct Peer {
    Stage stage = Stage::kNew;
    // Sending. outstanding[i] has the number firstNumber + i.
    std::deque<InFlightFrame> outstanding;
    uint64_t firstNumber = 1;
    size_t numToResend = 0;
    size_t turn = 0;
    Clock::duration resendAfter{};
    // Receiving.
    ReceiveWindow received;
    std::vector<Placement> placements;  ///< per rail: the frame arriving now
    uint64_t acknowledged = 1;          ///< what the peer was last told
    uint64_t firstDue = 0;              ///< ends of large messages the peer waits to hear of: the first and the last
    uint64_t lastDue = 0;
    uint64_t bytesDue = 0;
    // Rails.
    std::vector<LossCause> causes;  ///< of the rails' last failures; meaningful while none is up
    bool wasFound = false;          ///< somebody was there, if only to close the connection
    std::vector<bool> isUp;
    Capabilities capabilities;      ///< the longest payload follows the rails while frames are on their way
    Clock::time_point downSince{};  ///< when the last rail was lost, or the peer first wanted
    int numQuietTicks = 0;          ///< since then, or since something last arrived
    bool isWarned = false;
    std::string lastFailure;
    std::vector<int> carriersToTell;  ///< rails of this rank about whose carriers the peer must be told

    /// Whether any rail leads to it.
    bool isReached() const { return std::find(isUp.begin(), isUp.end(), true) != isUp.end(); }
  };

  Peer& peerOf(int peer);
  int chooseRail(const Peer& peer, int rank, size_t size) const;
  /// That all rails which are up carry soon.
  uint32_t longestPayload(const Peer& peer, int rank) const;
  /// Whether a rail that is full now would still deliver a frame much sooner than any that is not.
  bool isFullOneWorthWaitingFor(const Peer& peer, int rank) const;
  void transmit(int rank, Peer& peer, InFlightFrame& frame, int rail);
  void resend(int rank, Peer& peer);
  /// No rail reads the frame's payload any more.
  void cancelSend(int rank, const InFlightFrame& frame);
  static void reclaim(Peer& peer, int rail);
  void acknowledge(int rank, Peer& peer);
  void tellLinkStates(int rank, Peer& peer);
  /// A frame that is not counted and may get lost. Returns: whether there was room for it.
  bool sendUncounted(int rank, Peer& peer, FrameHeader header);
  void takeAcknowledgement(int rank, Peer& peer, uint64_t acknowledged);
  void giveUp(int rank, Peer& peer, LossCause cause, const Status& status);
  void judge(int rank, Peer& peer, Clock::time_point now);
  void retransmitExpired(int rank, Peer& peer, Clock::time_point now);

  std::span<std::byte> place(int rail, int rank, const FrameHeader& header);
  void arrived(int rail, int rank, const FrameHeader& header);
  void writable(int rail, int rank);
  void lost(int rail, int rank, LossCause cause, const Status& status);
  static void countIn(Peer& peer, const FrameHeader& header);
  /// Whether its sender may be waiting for what could not be said yet.
  static bool isAcknowledgementDue(const Peer& peer);

  std::vector<std::unique_ptr<Transport>> rails_;
  std::vector<std::unique_ptr<RailSink>> sinks_;
  MultirailOptions options_;
  Capabilities capabilities_;
  MultirailCounters counters_;
  Sink* sink_ = nullptr;
  std::vector<bool> hasCarrier_;
  std::map<int, Peer> peers_;
};

}  // namespace agspeed::comm
