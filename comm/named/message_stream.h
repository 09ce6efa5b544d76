// SPDX-License-Identifier: Apache-2.0
// MessageStream: messages of any length between the coordinator of a group and its other ranks.
//
// A message travels as frames of one size, because whoever receives has to know the size before. Each rank has a
// receive posted per peer that it hears from, which holds nothing up and asks nobody whether he is alive; watch() does,
// while something is waited for from a peer.
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
  /// A whole message of a rank of the group.
  virtual void messageArrived(int rank, std::span<const std::byte> message) = 0;
  /// A rank that is watched cannot be reached any more, or says what no intact rank does.
  virtual void peerFailed(int rank, const Status& status) = 0;

 protected:
  ~MessageListener() = default;
};

class MessageStream final : private Worker {
 public:
  /// `members` are the messenger's ranks of the group; messages carry `communicator`, which nobody else uses.
  MessageStream(Engine& engine, MessageListener& listener, std::vector<int> members, uint32_t communicator);

  /// Starts to hear from these ranks of the group.
  void open(std::span<const int> ranks);
  /// Ends what is under way.
  void close();
  void send(int rank, std::span<const std::byte> message);
  /// From now on the loss of the rank is noticed, until unwatchAll().
  void watch(int rank);
  void unwatchAll();

 private:
  static constexpr size_t kFrameBytes = 1024;
  struct Frame {
    uint32_t numLeft = 0;  ///< bytes of the message in this frame and those behind it
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
  std::vector<std::vector<std::byte>> partial_;               ///< per rank: of a message that is still coming
  std::vector<std::unique_ptr<FrameTransfer>> transfers_;
};

}  // namespace agspeed::comm
