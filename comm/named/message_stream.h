// SPDX-License-Identifier: Apache-2.0
// MessageStream: sends messages of any length between the coordinator of a group and the group's other ranks.
//
// A rank posts a receive before it knows the length of the message. So a message is sent as frames of one fixed size. A
// rank keeps one receive posted for each peer that sends to it. The messenger does not check that the peer of such a
// receive is alive, because the receive may stay posted for hours. A rank that waits for a message calls watch(), and
// the messenger then checks that peer.
//
// Threading: all calls are on the engine's driver. The stream calls its listener from Worker::work(), never from within
// a call of the messenger.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/engine/engine.h"

namespace agspeed::comm::named {

class MessageListener {
 public:
  /// Handles a complete message from a rank of the group.
  virtual void messageArrived(int rank, std::span<const std::byte> message) = 0;
  /// Handles that a watched rank cannot be reached any more, or that a peer has sent an invalid message.
  virtual void peerFailed(int rank, const Status& status) = 0;

 protected:
  ~MessageListener() = default;
};

class MessageStream final : private engine::Worker {
 public:
  /// `members[rank]` is the world rank of the group's `rank`. `communicator` is an id for messages that only this
  /// stream uses.
  MessageStream(engine::Engine& engine, MessageListener& listener, std::vector<int> members, uint32_t communicator);

  /// Posts a receive for each of these ranks of the group.
  void open(std::span<const int> ranks);
  /// Cancels all transfers.
  void close();
  /// Sends a message to `rank` of the group.
  void send(int rank, std::span<const std::byte> message);
  /// Makes the messenger check that `rank` is alive, until unwatchAll(). If the rank is lost, calls peerFailed() of the
  /// listener.
  void watch(int rank);
  /// Undoes all calls of watch().
  void unwatchAll();

 private:
  static constexpr size_t kFrameBytes = 1024;
  struct Frame {
    uint32_t numLeft = 0;  ///< bytes of the message in this frame and in all later frames
    std::array<std::byte, kFrameBytes - sizeof(uint32_t)> bytes;
  };
  /// The purpose of a transfer. A watch is a receive of a message that is never sent. While the receive is in flight,
  /// the messenger checks that the peer is alive.
  enum class Purpose : uint8_t { kSend, kReceive, kWatch };

  struct FrameTransfer final : messaging::Transfer {
    void finished(const Status& result) override { owner->transferFinished(*this, result); }
    std::string describe() const override { return "a message about named operations"; }

    MessageStream* owner = nullptr;
    int rank = -1;
    Purpose purpose = Purpose::kSend;
    bool isPending = false;
    Frame frame;
    Status status;
  };

  FrameTransfer& add(int rank, Purpose purpose);
  void post(FrameTransfer& transfer);
  void transferFinished(FrameTransfer& transfer, const Status& status);
  void work(uint64_t token) override;
  void received(FrameTransfer& transfer);
  void remove(const FrameTransfer& transfer);

  engine::Engine& engine_;
  MessageListener& listener_;
  const std::vector<int> members_;
  const uint32_t communicator_;
  bool isClosed_ = false;
  std::vector<uint64_t> numSent_, numReceived_, numWatches_;  ///< per rank: number of transfers so far
  std::vector<std::vector<std::byte>> partial_;               ///< per rank: received part of an unfinished message
  std::vector<std::unique_ptr<FrameTransfer>> transfers_;
};

}  // namespace agspeed::comm::named
