// SPDX-License-Identifier: Apache-2.0
// MessageStream: messages of any length between the coordinator of a group and its other ranks.
//
// A message is sent as frames of one size, because a receiver has to know the size in advance. Each rank keeps one
// receive posted for each peer that sends to it. These background receives do not check whether the peer is alive;
// watch() does so while a rank waits for a message of a peer.
//
// Threading: on the engine's driver. The listener is not called from within the messenger.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/engine/engine.h"

namespace agspeed::comm {

class MessageListener {
 public:
  /// A whole message of a rank of the group has arrived.
  virtual void messageArrived(int rank, std::span<const std::byte> message) = 0;
  /// A watched rank cannot be reached any more, or a peer has sent an invalid message.
  virtual void peerFailed(int rank, const Status& status) = 0;

 protected:
  ~MessageListener() = default;
};

class MessageStream final : private Worker {
 public:
  /// `members` are the group's ranks as the messenger numbers them. No other user may send messages under
  /// `communicator`.
  MessageStream(Engine& engine, MessageListener& listener, std::vector<int> members, uint32_t communicator);

  /// Starts to receive messages from these ranks of the group.
  void open(std::span<const int> ranks);
  /// Cancels all transfers.
  void close();
  void send(int rank, std::span<const std::byte> message);
  /// Reports the loss of this rank from now on, until unwatchAll().
  void watch(int rank);
  void unwatchAll();

 private:
  static constexpr size_t kFrameBytes = 1024;
  struct Frame {
    uint32_t numLeft = 0;  ///< bytes of the message in this frame and all later ones
    std::array<std::byte, kFrameBytes - sizeof(uint32_t)> bytes;
  };
  enum class Purpose : uint8_t { kSend, kReceive, kWatch };

  struct FrameTransfer final : Transfer {
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

  Engine& engine_;
  MessageListener& listener_;
  const std::vector<int> members_;
  const uint32_t communicator_;
  bool isClosed_ = false;
  std::vector<uint64_t> numSent_, numReceived_, numWatches_;  ///< per rank
  std::vector<std::vector<std::byte>> partial_;               ///< per rank: received part of an unfinished message
  std::vector<std::unique_ptr<FrameTransfer>> transfers_;
};

}  // namespace agspeed::comm
