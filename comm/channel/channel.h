// SPDX-License-Identifier: Apache-2.0
// Channel: one direction between two processes: messages in the order of their sends, per tag. Made by a Domain. A
// Request is a message on its way, or a group of up to kMaxParts that are received together, told apart by tags.
//
// Threading and ownership: the domain's lock; requests are the channel's, taken from a pool. The bytes are the caller's
// and stay in place until the request is done or the channel closed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/channel/association.h"
#include "comm/channel/control_line.h"
#include "comm/messaging/messenger.h"

namespace agspeed::comm {

class Channel;

struct ReceiveTarget {
  std::span<std::byte> bytes;  ///< a message may be shorter
  int tag = 0;
};

class Request {
 public:
  static constexpr size_t kMaxParts = 8;

  /// `maxParts`: of this one.
  Request(Channel& channel, size_t maxParts);
  Channel& channel() const { return channel_; }

 private:
  friend class Channel;
  struct Part final : Transfer {
    void finished(const Status& status) override;
    std::string describe() const override { return "a message of a channel"; }
    Request* request = nullptr;
    bool isUnderWay = false;
  };

  Channel& channel_;
  std::vector<Part> parts_;
  size_t numParts_ = 0;  ///< 0: the request is free
  size_t numLeft_ = 0;
  Status status_;
};

class Channel {
 public:
  enum class Direction { kSend, kReceive };

  /// What `line` says belongs to this channel from now on.
  Channel(Association& association, Direction direction, uint32_t number, std::unique_ptr<ControlLine> line);
  /// As close().
  ~Channel();

  Direction direction() const { return direction_; }
  Association& association() const { return association_; }

  /// Starts to send; nullptr: kMaxSends are under way, or kMaxReceives receives.
  Request* send(std::span<std::byte> bytes, int tag);
  /// Requires: at most Request::kMaxParts targets, and one at least.
  Request* receive(std::span<const ReceiveTarget> targets);
  /// nullopt while it is under way. Ok: the sizes of its messages are in `sizes`, one per target, where that is not
  /// null, and the request is free. A failure stays. A request that is free is an invalid argument.
  std::optional<Status> test(Request& request, int* sizes);

  /// What the peer has said on the line, or that it has ended, takes effect.
  void readLine();
  /// Ends what is under way: no byte of it is read or written any more. The peer is told.
  void close();
  /// The line of a closed channel, which the peer has yet to end; nullptr: there is none.
  std::unique_ptr<ControlLine> takeLine() { return std::move(line_); }

 private:
  friend class Request;
  static constexpr size_t kMaxReceives = 32;
  static constexpr size_t kMaxSends = kMaxReceives * Request::kMaxParts;

  Request* take(size_t numParts);
  void start(Request& request, size_t part, std::span<std::byte> bytes, int tag);
  void finished(Request::Part& part, const Status& status);
  uint64_t nextOf(int tag);
  /// Whether the peer has closed and nothing more of it will come.
  void checkEnd();
  /// Ends what is under way with this failure, and what is started later.
  void fail(const Status& failure);

  Association& association_;
  const Direction direction_;
  const uint32_t number_;
  std::unique_ptr<ControlLine> line_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<Request*> free_;
  std::vector<std::pair<int, uint64_t>> sequences_;  ///< by tag
  uint64_t numFinished_ = 0;                         ///< messages that were sent or received
  std::optional<uint64_t> numSentByPeer_;            ///< in all; known when it has closed
  Status failure_;
  bool isClosed_ = false;
};

}  // namespace agspeed::comm
