// SPDX-License-Identifier: Apache-2.0
#include "comm/named/message_stream.h"

#include <algorithm>
#include <utility>

namespace agspeed::comm::named {
namespace {

constexpr uint32_t kStreamStep = 0, kWatchStep = 1;
constexpr int kHighestPriority = INT32_MIN;
constexpr size_t kMaxMessageBytes = size_t{256} << 20;

}  // namespace

MessageStream::MessageStream(engine::Engine& engine, MessageListener& listener, std::vector<int> members,
                             uint32_t communicator)
    : engine_(engine),
      listener_(listener),
      members_(std::move(members)),
      communicator_(communicator),
      numSent_(members_.size(), 0),
      numReceived_(members_.size(), 0),
      numWatches_(members_.size(), 0),
      partial_(members_.size()) {}

void MessageStream::open(std::span<const int> ranks) {
  for (const int rank : ranks) post(add(rank, Purpose::kReceive));
}

void MessageStream::close() {
  isClosed_ = true;
  engine_.removeWork(*this);
  for (auto& transfer : transfers_) {
    if (std::exchange(transfer->isPending, false)) {
      engine_.messenger().cancel(*transfer, unavailable("the group is closed"));
    }
  }
  transfers_.clear();
  engine_.messenger().dropCommunicator(communicator_);
}

void MessageStream::send(int rank, std::span<const std::byte> message) {
  while (!message.empty()) {
    FrameTransfer& transfer = add(rank, Purpose::kSend);
    transfer.frame.numLeft = static_cast<uint32_t>(message.size());
    const size_t count = std::min(message.size(), transfer.frame.bytes.size());
    std::copy_n(message.begin(), count, transfer.frame.bytes.begin());
    std::fill(transfer.frame.bytes.begin() + static_cast<ptrdiff_t>(count), transfer.frame.bytes.end(), std::byte{});
    message = message.subspan(count);
    post(transfer);
  }
}

void MessageStream::watch(int rank) {
  const bool isWatched = std::any_of(transfers_.begin(), transfers_.end(), [&](const auto& transfer) {
    return transfer->rank == rank && transfer->purpose == Purpose::kWatch;
  });
  if (!isWatched) post(add(rank, Purpose::kWatch));
}

void MessageStream::unwatchAll() {
  for (auto& transfer : transfers_) {
    if (transfer->purpose == Purpose::kWatch && std::exchange(transfer->isPending, false)) {
      engine_.messenger().cancel(*transfer, unavailable("no operation waits for this rank any more"));
      transfer->purpose = Purpose::kSend;  // work() then only removes the transfer
      engine_.addWork(*this, reinterpret_cast<uintptr_t>(transfer.get()), kHighestPriority);
    }
  }
}

MessageStream::FrameTransfer& MessageStream::add(int rank, Purpose purpose) {
  FrameTransfer& transfer = *transfers_.emplace_back(std::make_unique<FrameTransfer>());
  transfer.owner = this;
  transfer.rank = rank;
  transfer.purpose = purpose;
  transfer.isBackground = purpose != Purpose::kWatch;
  transfer.peer = members_[static_cast<size_t>(rank)];
  transfer.bytes = std::as_writable_bytes(std::span(&transfer.frame, 1));
  return transfer;
}

void MessageStream::post(FrameTransfer& transfer) {
  const auto rank = static_cast<size_t>(transfer.rank);
  transfer.isPending = true;
  switch (transfer.purpose) {
    case Purpose::kSend:
      transfer.id = {communicator_, kStreamStep, ++numSent_[rank]};
      return engine_.messenger().send(transfer);
    case Purpose::kReceive:
      transfer.id = {communicator_, kStreamStep, ++numReceived_[rank]};
      return engine_.messenger().receive(transfer);
    case Purpose::kWatch:
      transfer.id = {communicator_, kWatchStep, ++numWatches_[rank]};
      return engine_.messenger().receive(transfer);
  }
}

void MessageStream::transferFinished(FrameTransfer& transfer, const Status& status) {
  if (!std::exchange(transfer.isPending, false)) return;  // the transfer is being cancelled
  transfer.status = status;
  engine_.addWork(*this, reinterpret_cast<uintptr_t>(&transfer), kHighestPriority);
}

void MessageStream::work(uint64_t token) {
  auto& transfer = *reinterpret_cast<FrameTransfer*>(token);
  if (transfer.purpose == Purpose::kReceive && transfer.status.isOk()) return received(transfer);
  const bool isLost = transfer.purpose == Purpose::kWatch && !transfer.status.isOk();
  const int rank = transfer.rank;
  const Status status = transfer.status;
  remove(transfer);
  if (isLost) listener_.peerFailed(rank, status);
}

void MessageStream::received(FrameTransfer& transfer) {
  const auto rank = static_cast<size_t>(transfer.rank);
  const Frame frame = transfer.frame;
  post(transfer);
  std::vector<std::byte>& message = partial_[rank];
  if (frame.numLeft > kMaxMessageBytes) {
    return listener_.peerFailed(
        transfer.rank, dataLoss("its message of {} bytes exceeds the limit of {}", frame.numLeft, kMaxMessageBytes));
  }
  const size_t count = std::min<size_t>(frame.numLeft, frame.bytes.size());
  message.insert(message.end(), frame.bytes.begin(), frame.bytes.begin() + static_cast<ptrdiff_t>(count));
  if (count < frame.numLeft) return;
  const std::vector<std::byte> whole = std::exchange(message, {});
  listener_.messageArrived(transfer.rank, whole);
}

void MessageStream::remove(const FrameTransfer& transfer) {
  std::erase_if(transfers_, [&](const auto& other) { return other.get() == &transfer; });
}

}  // namespace agspeed::comm::named
