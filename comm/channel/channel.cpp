// SPDX-License-Identifier: Apache-2.0
#include "comm/channel/channel.h"

#include <algorithm>
#include <array>

#include "comm/wire/byte_io.h"

namespace agspeed::comm {
namespace {

/// The record that an end of a channel sends when it closes: the number of messages that it has sent.
using Farewell = std::array<std::byte, sizeof(uint64_t)>;

}  // namespace

Request::Request(Channel& channel, size_t maxParts) : channel_(channel), parts_(maxParts) {
  for (Part& part : parts_) part.request = this;
}

void Request::Part::finished(const Status& status) { request->channel_.finished(*this, status); }

Channel::Channel(Association& association, Direction direction, uint32_t number, std::unique_ptr<ControlLine> line)
    : association_(association), direction_(direction), number_(number), line_(std::move(line)) {
  const bool isSending = direction == Direction::kSend;
  const size_t count = isSending ? kMaxSends : kMaxReceives, maxParts = isSending ? 1 : Request::kMaxParts;
  for (size_t i = 0; i < count; ++i) {
    requests_.push_back(std::make_unique<Request>(*this, maxParts));
    free_.push_back(requests_.back().get());
  }
  association_.addUser();
}

Channel::~Channel() { close(); }

Request* Channel::take(size_t numParts) {
  if (free_.empty()) return nullptr;
  Request* request = free_.back();
  free_.pop_back();
  request->numParts_ = numParts;
  request->numLeft_ = numParts;
  request->status_ = {};
  return request;
}

uint64_t Channel::nextOf(int tag) {
  const auto found =
      std::find_if(sequences_.begin(), sequences_.end(), [&](const auto& each) { return each.first == tag; });
  if (found != sequences_.end()) return found->second++;
  sequences_.emplace_back(tag, 1);
  return 0;
}

void Channel::start(Request& request, size_t part, std::span<std::byte> bytes, int tag) {
  Request::Part& transfer = request.parts_[part];
  transfer.peer = association_.peer();
  transfer.id = {number_, static_cast<uint32_t>(tag), nextOf(tag)};
  transfer.bytes = bytes;
  transfer.mayBeShorter = true;
  transfer.numReceived = 0;
  transfer.isUnderWay = true;
  if (!failure_) return finished(transfer, failure_);
  direction_ == Direction::kSend ? association_.send(transfer) : association_.receive(transfer);
}

Request* Channel::send(std::span<std::byte> bytes, int tag) {
  Request* request = take(1);
  if (request != nullptr) start(*request, 0, bytes, tag);
  return request;
}

Request* Channel::receive(std::span<const ReceiveTarget> targets) {
  Request* request = take(targets.size());
  if (request == nullptr) return nullptr;
  for (size_t i = 0; i < targets.size(); ++i) start(*request, i, targets[i].bytes, targets[i].tag);
  checkEnd();
  return request;
}

void Channel::finished(Request::Part& part, const Status& status) {
  part.isUnderWay = false;
  Request& request = *part.request;
  --request.numLeft_;
  if (status) {
    ++numFinished_;
  } else if (request.status_) {
    request.status_ = status;
  }
}

std::optional<Status> Channel::test(Request& request, int* sizes) {
  if (request.numParts_ == 0) return invalidArgument("the request is none that is under way");
  if (!request.status_) return association_.describe(request.status_);
  if (request.numLeft_ > 0) return std::nullopt;
  for (size_t i = 0; sizes != nullptr && i < request.numParts_; ++i) {
    const Request::Part& part = request.parts_[i];
    sizes[i] = static_cast<int>(direction_ == Direction::kSend ? part.bytes.size() : part.numReceived);
  }
  request.numParts_ = 0;
  free_.push_back(&request);
  return Status();
}

void Channel::readLine() {
  if (line_ == nullptr) return;
  while (const auto record = line_->receive()) {
    if (record->size() == sizeof(Farewell)) numSentByPeer_ = ByteReader(*record).take<uint64_t>();
  }
  // A line that ends without a farewell means that the process has ended. Messages that it sent before may still
  // arrive; the messenger detects when no more will.
  checkEnd();
}

void Channel::checkEnd() {
  if (!numSentByPeer_ || !failure_) return;
  if (direction_ == Direction::kReceive && numFinished_ < *numSentByPeer_) return;
  fail(unavailable("the connection was closed by " + association_.peerName()));
}

void Channel::fail(const Status& failure) {
  failure_ = failure;
  for (const auto& request : requests_) {
    for (size_t i = 0; i < request->numParts_; ++i) {
      Request::Part& part = request->parts_[i];
      if (part.isUnderWay) association_.cancel(part, failure);
    }
  }
}

void Channel::close() {
  if (std::exchange(isClosed_, true)) return;
  const uint64_t numFinished = numFinished_;
  if (failure_) fail(unavailable("the connection was closed by this process"));
  association_.dropCommunicator(number_);
  if (line_ != nullptr) {
    Farewell farewell;
    ByteWriter(farewell).put(numFinished);
    line_->send(farewell);
    line_->finish();
  }
  association_.removeUser();
}

}  // namespace agspeed::comm
