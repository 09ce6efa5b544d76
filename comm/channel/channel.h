// SPDX-License-Identifier: Apache-2.0
// Channel: carries messages in one direction between two processes. Messages of one tag match in order: the n-th
// receive gets the n-th message. A Domain makes channels. A ChannelRequest tracks one send, or a group of up to
// kMaxParts receives that complete together. The messages of a group are distinguished by their tags.
//
// Threading: the domain's lock protects all functions. Ownership: the channel owns its requests, and takes them from a
// pool. The caller owns the bytes, and keeps them in place until the request is done or the channel is closed.
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

namespace agspeed::comm::channel {

class Channel;

struct ReceiveTarget {
  std::span<std::byte> bytes;  ///< memory for the message, which may be shorter
  int tag = 0;
};

class ChannelRequest {
 public:
  static constexpr size_t kMaxParts = 8;

  /// Makes a free request of `channel` with room for `maxParts` messages.
  ChannelRequest(Channel& channel, size_t maxParts);
  Channel& channel() const { return channel_; }

 private:
  friend class Channel;
  struct Part final : messaging::Transfer {
    void finished(const Status& status) override;
    std::string describe() const override { return "a message of a channel"; }
    ChannelRequest* request = nullptr;
    bool isPending = false;  ///< the messenger has the transfer in flight
  };

  Channel& channel_;
  std::vector<Part> parts_;
  size_t numParts_ = 0;            ///< messages of the request; 0: the request is free
  size_t numLeft_ = 0;             ///< messages that are still in flight
  std::optional<Status> failure_;  ///< the first failure of one of its messages
};

class Channel {
 public:
  enum class Direction { kSend, kReceive };

  /// Makes the local end of channel `number`, and a user of the association. The channel takes ownership of the control
  /// line.
  Channel(Association& association, Direction direction, uint32_t number, std::unique_ptr<ControlLine> line);
  /// Calls close().
  ~Channel();

  Direction direction() const { return direction_; }
  Association& association() const { return association_; }

  /// Starts to send `bytes`. Returns: the request; nullptr if kMaxSends requests are in flight.
  ChannelRequest* send(std::span<std::byte> bytes, int tag);
  /// Starts to receive one message into each target. Returns: the request for all of them; nullptr if kMaxReceives
  /// requests are in flight. Requires: 1 to ChannelRequest::kMaxParts targets.
  ChannelRequest* receive(std::span<const ReceiveTarget> targets);
  /// Checks whether the request has completed, and returns a completed request to the pool. Returns: nullopt while the
  /// request is in flight; Ok if it has succeeded; otherwise its failure. On success, this function writes the size of
  /// each message to `sizes`, unless `sizes` is null.
  ///
  /// A failed request returns to the pool only when none of its messages is in flight any more. Until then, every test
  /// returns the same failure. A test of a request that is in the pool fails as invalid argument.
  std::optional<Status> test(ChannelRequest& request, int* sizes);

  /// Reads the peer's farewell from the control line if it has arrived, and calls checkEnd(). Call this function when
  /// the line has changed.
  void readLine();
  /// Closes the channel: cancels all requests in flight, so that their bytes are not accessed any more, and sends a
  /// farewell to the peer. Later calls do nothing.
  void close();
  /// Transfers ownership of the control line to the caller; nullptr: there is none. Requires: the channel is closed.
  /// The line stays open until the peer closes its end or the line is destroyed.
  std::unique_ptr<ControlLine> takeLine() { return std::move(line_); }

 private:
  friend class ChannelRequest;
  static constexpr size_t kMaxReceives = 32;
  static constexpr size_t kMaxSends = kMaxReceives * ChannelRequest::kMaxParts;

  /// Takes a request for `numParts` messages out of the pool; nullptr: the pool is empty.
  ChannelRequest* take(size_t numParts);
  void release(ChannelRequest& request);
  void start(ChannelRequest& request, size_t part, std::span<std::byte> bytes, int tag);
  void finished(ChannelRequest::Part& part, const Status& status);
  /// Returns the sequence of the next message with this tag, and counts the message.
  uint64_t nextSequence(int tag);
  /// Fails the channel if the peer has closed its end. A sending channel fails at once. A receiving channel fails when
  /// all messages of the peer have been received.
  void checkEnd();
  /// Reports to the association that one end has closed the channel. Later calls do nothing.
  void endOpen();
  /// Fails all requests in flight, and all requests that are started later.
  void fail(const Status& failure);

  Association& association_;
  const Direction direction_;
  const uint32_t number_;
  std::unique_ptr<ControlLine> line_;
  std::vector<std::unique_ptr<ChannelRequest>> requests_;
  std::vector<ChannelRequest*> free_;
  std::vector<std::pair<int, uint64_t>> sequences_;  ///< the next sequence of each tag
  uint64_t numFinished_ = 0;                         ///< messages that were sent or received successfully
  std::optional<uint64_t> numSentByPeer_;            ///< from the peer's farewell: the messages that it sent in all
  std::optional<Status> failure_;                    ///< the error of all later requests
  bool isClosed_ = false;                            ///< this end is closed
  bool isOpen_ = true;                               ///< both ends are open, as far as this end knows
};

}  // namespace agspeed::comm::channel
