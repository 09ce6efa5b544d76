// SPDX-License-Identifier: Apache-2.0
#include "comm/channel/channel.h"

#include <algorithm>
#include <array>

#include "comm/wire/byte_io.h"

namespace agspeed::comm::channel {
namespace {

/// The record that an end of a channel sends when it closes: the number of messages that it has sent or received.
using Farewell = std::array<std::byte, sizeof(uint64_t)>;

}  // namespace

ChannelRequest::ChannelRequest(Channel& channel, size_t maxParts) : channel_(channel), parts_(maxParts) {
  for (Part& part : parts_) part.request = this;
}

void ChannelRequest::Part::finished(const Status& status) { request->channel_.finished(*this, status); }

Channel::Channel(Association& association, Direction direction, uint32_t number, std::unique_ptr<ControlLine> line)
    : association_(association), direction_(direction), number_(number), line_(std::move(line)) {
  const bool isSending = direction == Direction::kSend;
  const size_t count = isSending ? kMaxSends : kMaxReceives, maxParts = isSending ? 1 : ChannelRequest::kMaxParts;
  for (size_t i = 0; i < count; ++i) {
    requests_.push_back(std::make_unique<ChannelRequest>(*this, maxParts));
    free_.push_back(requests_.back().get());
  }
  association_.addUser();
  association_.addOpenChannel();
}

Channel::~Channel() { close(); }

ChannelRequest* Channel::take(size_t numParts) {
  if (free_.empty()) return nullptr;
  ChannelRequest* request = free_.back();
  free_.pop_back();
  request->numParts_ = numParts;
  request->numLeft_ = numParts;
  request->failure_.reset();
  return request;
}

uint64_t Channel::nextSequence(int tag) {
  const auto found =
      std::find_if(sequences_.begin(), sequences_.end(), [&](const auto& each) { return each.first == tag; });
  if (found != sequences_.end()) return found->second++;
  sequences_.emplace_back(tag, 1);
  return 0;
}

void Channel::start(ChannelRequest& request, size_t part, std::span<std::byte> bytes, int tag) {
  ChannelRequest::Part& transfer = request.parts_[part];
  transfer.peer = association_.peer();
  transfer.id = {number_, static_cast<uint32_t>(tag), nextSequence(tag)};
  transfer.bytes = bytes;
  transfer.mayBeShorter = true;
  transfer.numReceived = 0;
  transfer.isPending = true;
  if (failure_) return finished(transfer, *failure_);
  direction_ == Direction::kSend ? association_.send(transfer) : association_.receive(transfer);
}

ChannelRequest* Channel::send(std::span<std::byte> bytes, int tag) {
  ChannelRequest* request = take(1);
  if (request != nullptr) start(*request, 0, bytes, tag);
  return request;
}

ChannelRequest* Channel::receive(std::span<const ReceiveTarget> targets) {
  ChannelRequest* request = take(targets.size());
  if (request == nullptr) return nullptr;
  for (size_t i = 0; i < targets.size(); ++i) start(*request, i, targets[i].bytes, targets[i].tag);
  checkEnd();
  return request;
}

void Channel::finished(ChannelRequest::Part& part, const Status& status) {
  part.isPending = false;
  ChannelRequest& request = *part.request;
  --request.numLeft_;
  if (status.isOk()) {
    ++numFinished_;
  } else if (!request.failure_) {
    request.failure_ = status;
  }
}

std::optional<Status> Channel::test(ChannelRequest& request, int* sizes) {
  if (request.numParts_ == 0) return invalidArgument("the request is not in flight: its result was returned before");
  if (request.failure_) {
    const Status failure = *request.failure_;
    if (request.numLeft_ == 0) release(request);
    return failure;
  }
  if (request.numLeft_ > 0) return std::nullopt;
  for (size_t i = 0; sizes != nullptr && i < request.numParts_; ++i) {
    const ChannelRequest::Part& part = request.parts_[i];
    sizes[i] = static_cast<int>(direction_ == Direction::kSend ? part.bytes.size() : part.numReceived);
  }
  release(request);
  return Status();
}

void Channel::release(ChannelRequest& request) {
  request.numParts_ = 0;
  free_.push_back(&request);
}

void Channel::readLine() {
  if (line_ == nullptr) return;
  while (const auto record = line_->receive()) {
    if (record->size() != sizeof(Farewell)) continue;
    numSentByPeer_ = wire::ByteReader(*record).take<uint64_t>();
    endOpen();
  }
  // If the line was closed without a farewell, the peer's process has ended. Messages that it sent before may still
  // arrive. The messenger detects when no more messages can arrive.
  checkEnd();
}

void Channel::checkEnd() {
  if (!numSentByPeer_ || failure_) return;
  if (direction_ == Direction::kReceive && numFinished_ < *numSentByPeer_) return;
  fail(unavailable("the connection was closed by " + association_.peerName()));
}

void Channel::fail(const Status& failure) {
  failure_ = failure;
  for (const auto& request : requests_) {
    for (size_t i = 0; i < request->numParts_; ++i) {
      ChannelRequest::Part& part = request->parts_[i];
      if (part.isPending) association_.cancel(part, failure);
    }
  }
}

void Channel::endOpen() {
  if (std::exchange(isOpen_, false)) association_.removeOpenChannel();
}

void Channel::close() {
  if (std::exchange(isClosed_, true)) return;
  endOpen();
  const uint64_t numFinished = numFinished_;
  if (!failure_) fail(unavailable("the connection was closed by this process"));
  association_.dropCommunicator(number_);
  if (line_ != nullptr) {
    Farewell farewell;
    wire::ByteWriter(farewell).put(numFinished);
    line_->send(farewell);
    line_->finish();
  }
  association_.removeUser();
}

}  // namespace agspeed::comm::channel
