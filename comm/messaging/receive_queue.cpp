// SPDX-License-Identifier: Apache-2.0
#include "comm/messaging/receive_queue.h"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/format.h"

namespace agspeed::comm::messaging {

void ReceiveQueue::start(Transfer& transfer) {
  const auto [entry, isNew] = incoming_.try_emplace(transfer.id);
  const bool isOpen = isNew ? expect(transfer, entry->second) : matchUnexpected(transfer, entry->second);
  if (!isOpen) incoming_.erase(entry);
}

bool ReceiveQueue::expect(Transfer& transfer, Incoming& message) {
  message.transfer = &transfer;
  message.total = transfer.bytes.size();
  message.isUpTo = transfer.acceptsShorter();
  const auto rts = rtsReceived_.find(transfer.id);
  if (rts == rtsReceived_.end()) {
    const bool mayNeedCts = transfer.mayBeShorter ? message.total >= wire::kZeroCopyBytes : !mayBeEager(message.total);
    if (mayNeedCts) sendCts(transfer.id, message);
    return true;
  }
  const uint64_t length = rts->second;
  rtsReceived_.erase(rts);
  const bool isExpected = message.settle(length);
  sendCts(transfer.id, message);
  if (!isExpected) failLength(transfer, length);
  return isExpected;
}

bool ReceiveQueue::matchUnexpected(Transfer& transfer, Incoming& message) {
  const uint64_t room = transfer.bytes.size();
  if (message.total == room || (transfer.acceptsShorter() && message.total < room)) {
    message.transfer = &transfer;
    if (message.isWhole()) finish(message, wire::FrameKind::kEager);
    return !message.isWhole();
  }
  failLength(transfer, message.total);
  cancelReceive(message);
  if (message.isWhole()) {
    consume(message.total);
  } else {
    discarded_[transfer.id] = {.left = message.total - message.numReceived};
  }
  return false;
}

void ReceiveQueue::sendCts(const wire::MessageId& id, Incoming& message) {
  if (std::exchange(message.isCtsSent, true)) return;
  sends_.queueControl(wire::FrameKind::kCts, id, message.total, message.isUpTo ? wire::kCtsUpTo : 0);
}

void ReceiveQueue::failLength(Transfer& transfer, uint64_t sent) {
  context_.completions.add(
      transfer, wrongLength(context_.selfName(), transfer.bytes.size(), context_.peerName(), sent, transfer.id));
}

void ReceiveQueue::refuse(MessageMap<Incoming>::iterator found, uint64_t sent) {
  failLength(*found->second.transfer, sent);
  cancelReceive(found->second);
  incoming_.erase(found);
}

void ReceiveQueue::cancelReceive(const Incoming& message) {
  const ByteView target =
      message.buffer != nullptr ? ByteView(message.buffer.get(), message.total) : ByteView(message.transfer->bytes);
  context_.transport.cancelReceive(context_.peer, target);
}

void ReceiveQueue::consume(uint64_t total) {
  if (credits_.consume(total)) sends_.queueControl(wire::FrameKind::kCredit);
}

void ReceiveQueue::finish(const Incoming& message, wire::FrameKind kind) {
  if (message.buffer != nullptr) {
    std::copy_n(message.buffer.get(), message.total, message.transfer->bytes.begin());
  }
  if (kind == wire::FrameKind::kEager) consume(message.total);
  message.transfer->numReceived = message.total;
  context_.completions.add(*message.transfer, {});
}

std::span<std::byte> ReceiveQueue::place(const wire::FrameHeader& header) {
  auto found = incoming_.find(header.id);
  if (found == incoming_.end()) {
    if (!holdUnexpected(header)) return {};
    found = incoming_.try_emplace(header.id).first;
    found->second.total = header.total;
    auto buffer = std::make_unique_for_overwrite<std::byte[]>(header.total);
    found->second.buffer = {buffer.release(), {&credits_, header.total}};
  }
  Incoming& message = found->second;
  if (!message.settle(header.total) || !message.mayTake(header)) return {};
  std::byte* const whole = message.buffer != nullptr ? message.buffer.get() : message.transfer->bytes.data();
  return std::span(whole, message.total).subspan(header.offset, header.length);
}

bool ReceiveQueue::holdUnexpected(const wire::FrameHeader& header) {
  if (header.kind != wire::FrameKind::kEager || header.total > kMaxEagerZeroCopyBytes) return false;
  if (context_.dropped.contains(header.id.communicator)) discarded_.try_emplace(header.id);
  if (discarded_.contains(header.id)) return false;
  const bool isWithinWindow = credits_.holdUnexpected(header.total);
  if (!isWithinWindow) {
    violation_ = formatText("it sent more than {} MiB of unexpected messages, as no intact rank does",
                            Credits::kMaxUnexpectedBytes >> 20);
  }
  return isWithinWindow;
}

void ReceiveQueue::arrived(const wire::FrameHeader& header) {
  if (header.length == 0) (void)place(header);  // an empty message has no payload to place
  const auto found = incoming_.find(header.id);
  if (found == incoming_.end()) return discard(header);
  Incoming& message = found->second;
  if (!message.settle(header.total)) {
    if (message.transfer == nullptr) return;  // the peer has used a message name twice
    refuse(found, header.total);
    if (header.kind == wire::FrameKind::kEager) {
      discarded_[header.id] = {};
      discard(header);
    }
    return;
  }
  if (!message.mayTake(header)) {
    violation_ = formatText("it sent more than the {} bytes of a message {}, as no intact rank does", message.total,
                            nameOf(header.id));
    return;
  }
  message.numReceived += header.length;
  if (!message.isWhole()) return;
  cancelReceive(message);  // frames that repeat earlier bytes may still be arriving
  if (message.transfer == nullptr) return;
  finish(message, header.kind);
  incoming_.erase(found);
}

void ReceiveQueue::discard(const wire::FrameHeader& header) {
  const auto found = discarded_.find(header.id);
  if (found == discarded_.end()) return;
  Discarded& message = found->second;
  if (header.kind == wire::FrameKind::kEager && !std::exchange(message.isConsumed, true)) consume(header.total);
  message.left = std::min(message.left, header.total);
  message.left -= std::min<uint64_t>(message.left, header.length);
  if (message.left == 0) discarded_.erase(found);
}

void ReceiveQueue::receivedRts(const wire::FrameHeader& header) {
  const auto found = incoming_.find(header.id);
  if (found != incoming_.end()) {
    const bool isExpected = found->second.settle(header.total);
    sendCts(header.id, found->second);
    if (isExpected || found->second.transfer == nullptr) return;
    refuse(found, header.total);
  } else if (const auto discarded = discarded_.find(header.id); discarded != discarded_.end()) {
    // Send the CTS although the message is discarded, so that the peer's send completes.
    sends_.queueControl(wire::FrameKind::kCts, header.id, header.total);
    discarded->second.left = std::max<uint64_t>(header.total, 1);
  } else if (context_.dropped.contains(header.id.communicator)) {
    sends_.queueControl(wire::FrameKind::kCts, header.id, header.total);
  } else {
    rtsReceived_[header.id] = header.total;
  }
}

bool ReceiveQueue::cancel(Transfer& transfer) {
  const auto found = incoming_.find(transfer.id);
  if (found == incoming_.end() || found->second.transfer != &transfer) return false;
  const Incoming& message = found->second;
  cancelReceive(message);
  discarded_[transfer.id] = {.left = message.numReceived > 0 ? message.total - message.numReceived : kAllBytes};
  incoming_.erase(found);
  return true;
}

void ReceiveQueue::dropCommunicator(uint32_t communicator) {
  std::erase_if(rtsReceived_, [&](const auto& entry) {
    if (entry.first.communicator != communicator) return false;
    sends_.queueControl(wire::FrameKind::kCts, entry.first, entry.second);  // so that the peer's send completes
    return true;
  });
  // Remove the entries of messages that have not begun to arrive. From now on, they are discarded because
  // context_.dropped contains their communicator.
  std::erase_if(discarded_, [&](const auto& entry) {
    return entry.first.communicator == communicator && entry.second.left == kAllBytes;
  });
  std::erase_if(incoming_, [&](const auto& entry) {
    const auto& [id, message] = entry;
    if (id.communicator != communicator || message.transfer != nullptr) return false;
    if (message.isWhole()) {
      consume(message.total);
    } else {
      cancelReceive(message);
      discarded_[id] = {.left = message.total - message.numReceived};
    }
    return true;
  });
}

bool ReceiveQueue::probe(const wire::MessageId& id) const {
  const auto message = incoming_.find(id);
  const bool isArriving = message != incoming_.end() && message->second.transfer == nullptr;
  return isArriving || rtsReceived_.contains(id);
}

const Transfer* ReceiveQueue::awaited() const {
  for (const auto& [id, message] : incoming_) {
    if (message.transfer != nullptr && !message.transfer->isBackground) return message.transfer;
  }
  return nullptr;
}

uint64_t ReceiveQueue::numBytesMoved(const Transfer& transfer) const {
  const auto found = incoming_.find(transfer.id);
  return found == incoming_.end() || found->second.transfer != &transfer ? 0 : found->second.numReceived;
}

void ReceiveQueue::fail(const Status& status) {
  const std::string context = "receiving from " + context_.peerName() + " failed after ";
  std::erase_if(incoming_, [&](const auto& entry) {
    const Incoming& message = entry.second;
    if (message.transfer == nullptr && message.isWhole()) return false;
    cancelReceive(message);
    if (message.transfer == nullptr) return true;
    const std::string part = formatText("{} of {} bytes", message.numReceived, message.total);
    context_.completions.add(*message.transfer, status.withContext(context + part));
    return true;
  });
  rtsReceived_.clear();
  discarded_.clear();
}

void ReceiveQueue::detachCallers() {
  std::erase_if(incoming_, [&](const auto& entry) {
    if (entry.second.transfer == nullptr) return false;
    cancelReceive(entry.second);
    return true;
  });
}

}  // namespace agspeed::comm::messaging
