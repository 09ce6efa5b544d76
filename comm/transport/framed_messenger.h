// SPDX-License-Identifier: Apache-2.0
// FramedMessenger: messages over a transport that acknowledges its frames.
//
//   small messages  are copied and sent at once; the send is finished. The receiver keeps those that nobody waits for
//                   yet; it grants each peer kEagerWindowBytes of them and takes credit back as they find receives.
//   large messages  (kLargeBytes and more, or small ones beyond the credit) wait until their receiver asks for them, so
//                   that they go straight into its memory and never block what it wants sooner. Sent from the caller's
//                   memory; finished when acknowledged.
//
// A receiver asks for a large message when it starts to receive; a sender that was not asked yet announces itself, so
// that a receiver which expects another length can say so. Control frames go before small messages, small before large.
//
// A peer that transfers wait for and that says nothing is asked whether it is alive (pulse.h), and given up when its
// process does not answer for the time that options allow; it is told so, should it come back.
//
// Threading: as messenger.h says; no thread of its own. Owns the transport; the poller outlives it. The destructor
// hands what is copied and not yet sent to the kernel, for at most a second; unfinished transfers are left alone.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/transport/messenger.h"
#include "comm/transport/poller.h"
#include "comm/transport/pulse.h"
#include "comm/transport/transport.h"

namespace agspeed::comm {

class FramedMessenger final : public Messenger, private Transport::Sink {
 public:
  static constexpr uint64_t kLargeBytes = 64 * 1024;
  static constexpr uint64_t kEagerWindowBytes = 4 * 1024 * 1024;

  /// Requires: transport->capabilities().isAcknowledging.
  FramedMessenger(int rank, int size, std::unique_ptr<Transport> transport, Poller& poller,
                  Clock::duration peerTimeout = std::chrono::seconds(10));
  ~FramedMessenger() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void send(Transfer& transfer) override;
  void receive(Transfer& transfer) override;
  void cancel(Transfer& transfer, const Status& reason) override;
  bool isOffered(int peer, const MessageId& id) const override;
  bool progress(Clock::time_point until) override;
  bool hasUnsent() const override;
  void wake() override { poller_.wake(); }

 private:
  struct IdHash {
    size_t operator()(const MessageId& id) const {
      uint64_t hash = id.sequence * 0x9e3779b97f4a7c15u + (uint64_t{id.communicator} << 32 | id.step);
      return (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9u >> 16;
    }
  };
  template <typename T>
  using ById = std::unordered_map<MessageId, T, IdHash>;

  /// A message on its way out. Lives until its last frame is acknowledged.
  struct Outgoing {
    Transfer* transfer = nullptr;  ///< null once finished
    MessageId id;
    FrameKind kind = FrameKind::kData;
    std::vector<std::byte> copy;
    ByteView bytes;
    uint64_t numSent = 0;
    uint32_t numUnacknowledged = 0;
    bool isWhollySent = false;
  };
  /// A message on its way in, or waited for.
  struct Incoming {
    Transfer* transfer = nullptr;   ///< null while nobody waits for it
    std::vector<std::byte> buffer;  ///< of a small message that came first
    uint64_t total = 0;
    uint64_t numReceived = 0;
    bool isBuffered = false;
    bool isAsked = false;
  };
  struct Control {
    FrameKind kind;
    MessageId id;
    uint64_t total;
  };
  struct Peer {
    Status failure;
    Pulse pulse;
    std::deque<Control> control;
    std::deque<Outgoing*> small;  ///< to be sent, first first
    std::deque<Outgoing*> large;
    ById<std::unique_ptr<Outgoing>> unasked;  ///< announced, not asked for
    std::set<Outgoing*> outgoing;             ///< all others, owned
    ById<uint64_t> asked;                     ///< lengths the peer asked for before the send was started
    ById<Incoming> incoming;
    ById<uint64_t> announced;  ///< lengths the peer announced before the receive was started
    ById<uint64_t> discarded;  ///< bytes to come of small messages that nobody wants any more; all: kAllBytes
    uint64_t eagerSent = 0;
    uint64_t eagerConsumedThere = 0;
    uint64_t eagerConsumed = 0;
    uint64_t eagerConsumedTold = 0;
  };
  static constexpr uint64_t kAllBytes = UINT64_MAX;

  std::span<std::byte> place(int peer, const FrameHeader& header) override;
  void arrived(int peer, const FrameHeader& header) override;
  void acknowledged(int peer, uint64_t token) override;
  void writable(int peer) override { pump(peer); }
  void lost(int peer, LossCause cause, const Status& status) override;

  Peer& peerOf(int peer);
  void start(Peer& peer, std::unique_ptr<Outgoing> message, std::deque<Outgoing*>& queue);
  void pump(int rank);
  void sendSegment(int rank, Peer& peer, std::deque<Outgoing*>& queue);
  void ask(Peer& peer, const MessageId& id, Incoming& message);
  void arrivedData(int rank, Peer& peer, const FrameHeader& header);
  void arrivedAnnounce(Peer& peer, const FrameHeader& header);
  void arrivedReady(int rank, Peer& peer, const FrameHeader& header);
  void discard(Peer& peer, const FrameHeader& header);
  void consume(Peer& peer, uint64_t total);
  void release(Peer& peer, Outgoing* message);
  void failLength(Transfer& transfer, uint64_t received);
  Transfer* cancelOutgoing(Peer& peer, Transfer& transfer);
  bool cancelIncoming(Peer& peer, Transfer& transfer);

  void tick(Clock::time_point now);
  /// Whether those who are waited for are alive. Returns: when to look again.
  Clock::time_point lookAtPulses(Clock::time_point now);
  void lookAtPulse(int rank, Peer& peer, const Transfer* awaiting, Clock::time_point now);
  /// One of the transfers that need the peer; null while nothing does.
  static const Transfer* awaitingTransfer(const Peer& peer);
  void lose(int rank, const std::string& why);

  void finish(Transfer*& transfer, Status status);
  bool tellFinished();
  uint64_t segmentBytes(int rank, uint64_t total) const;

  const int rank_;
  const int size_;
  std::unique_ptr<Transport> transport_;
  Poller& poller_;
  const Clock::duration peerTimeout_;
  std::unordered_map<int, Peer> peers_;
  Clock::time_point tickedAt_{};
  Clock::time_point nextTick_{};
  Clock::time_point nextLook_{};
  std::deque<std::pair<Transfer*, Status>> finished_;
  bool isTelling_ = false;
};

}  // namespace agspeed::comm
