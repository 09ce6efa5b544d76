// SPDX-License-Identifier: Apache-2.0
// Channel: messages in one direction between two processes, in the order of their sends per tag. Made by a Domain. A
// Request is a message in flight, or a group of up to kMaxParts messages that are received together; tags distinguish
// them.
//
// Threading and ownership: the domain's lock protects all functions. The channel owns its requests, which come from a
// pool. The caller owns the bytes, which stay in place until the request is done or the channel is closed.
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

  /// `maxParts`: the most messages of this request.
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

  /// `line` belongs to this channel from now on.
  Channel(Association& association, Direction direction, uint32_t number, std::unique_ptr<ControlLine> line);
  /// Calls close().
  ~Channel();

  Direction direction() const { return direction_; }
  Association& association() const { return association_; }

  /// Starts to send; nullptr: kMaxSends requests are in flight.
  Request* send(std::span<std::byte> bytes, int tag);
  /// Starts to receive; nullptr: kMaxReceives requests are in flight. Requires: 1 to Request::kMaxParts targets.
  Request* receive(std::span<const ReceiveTarget> targets);
  /// nullopt while the request is in flight. Ok: the request is free, and `sizes`, unless it is null, has the size of
  /// each message. A failure is permanent: the request stays taken. Invalid argument: the request is free.
  std::optional<Status> test(Request& request, int* sizes);

  /// Handles the peer's records on the control line, and the line's end.
  void readLine();
  /// Ends all requests, whose bytes are not read or written any more, and sends a farewell to the peer.
  void close();
  /// The control line of a closed channel, which stays open until the peer closes its end; nullptr: there is none.
  std::unique_ptr<ControlLine> takeLine() { return std::move(line_); }

 private:
  friend class Request;
  static constexpr size_t kMaxReceives = 32;
  static constexpr size_t kMaxSends = kMaxReceives * Request::kMaxParts;

  Request* take(size_t numParts);
  void start(Request& request, size_t part, std::span<std::byte> bytes, int tag);
  void finished(Request::Part& part, const Status& status);
  uint64_t nextOf(int tag);
  /// Fails the channel if the peer has closed it and no more messages will arrive.
  void checkEnd();
  /// Fails all requests in flight, and all that are started later.
  void fail(const Status& failure);

  Association& association_;
  const Direction direction_;
  const uint32_t number_;
  std::unique_ptr<ControlLine> line_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<Request*> free_;
  std::vector<std::pair<int, uint64_t>> sequences_;  ///< by tag
  uint64_t numFinished_ = 0;                         ///< messages that were sent or received
  std::optional<uint64_t> numSentByPeer_;            ///< messages in all; known when the peer has closed
  Status failure_;
  bool isClosed_ = false;
};

}  // namespace agspeed::comm
