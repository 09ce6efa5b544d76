// SPDX-License-Identifier: Apache-2.0
#include "comm/messaging/send_queue.h"

#include <algorithm>
#include <string>

#include "runtime/base/format.h"

namespace agspeed::comm::messaging {
namespace {

/// Frame length = (bytes that wait or will follow) / kFramesAhead, within the transport's limits. Long frames cost less
/// work per byte. At the end of an operation the frames become short, so all rails finish at the same time.
constexpr uint64_t kFramesAhead = 4;

}  // namespace

uint64_t SendQueue::nextFrameBytes(const Outgoings& queue) const {
  const transport::Transport::Capabilities& can = context_.transport.capabilities(context_.peer);
  const uint64_t left = queue.front()->bytes.size() - queue.front()->numSent;
  if (left <= can.segmentBytes) return left;
  const uint64_t waiting = numWaiting(queue, kFramesAhead * can.maxPayloadBytes);
  const uint64_t most = std::clamp<uint64_t>(waiting / kFramesAhead, can.segmentBytes, can.maxPayloadBytes);
  // Make all frames equally long, because a short last frame would cost as much as a long one.
  const uint64_t numFrames = (left + most - 1) / most;
  return (left + numFrames - 1) / numFrames;
}

uint64_t SendQueue::numWaiting(const Outgoings& queue, uint64_t enough) {
  if (queue.empty()) return 0;
  const Transfer* first = queue.front()->transfer;
  uint64_t waiting = first == nullptr ? 0 : first->numFollowing;
  for (const Outgoing* message : queue) {
    waiting += message->bytes.size() - message->numSent;
    if (waiting >= enough) break;
  }
  return waiting;
}

bool SendQueue::hasMuch() const {
  const uint64_t much = kFramesAhead * context_.transport.capabilities(context_.peer).maxPayloadBytes;
  return numWaiting(zeroCopies_, much) >= much;
}

transport::OutgoingFrame SendQueue::frameOf(wire::FrameKind kind, const wire::MessageId& id, uint64_t total) {
  transport::OutgoingFrame frame;
  frame.header.kind = kind;
  frame.header.id = id;
  frame.header.total = total;
  frame.header.consumed = credits_.advertise();
  return frame;
}

SendQueue::Outgoing& SendQueue::add(const wire::MessageId& id, ByteView bytes) {
  Outgoing& message = messages_.emplace_back(&pool_);
  message.self = std::prev(messages_.end());
  message.id = id;
  message.bytes = bytes;
  return message;
}

void SendQueue::start(Transfer& transfer) {
  const uint64_t total = transfer.bytes.size();
  // Both ends must decide alike whether the message may be eager. A message may be shorter than the receive that waits
  // for it (Transfer::room), so both ends decide by the length of the receive.
  const bool isEager = mayBeEager(std::max(total, transfer.room));
  if (transfer.mayBeShorter) started_[seriesOf(transfer.id)] = transfer.id.sequence + 1;
  if (isEager && total < wire::kZeroCopyBytes && credits_.acquire(total)) {
    if (transfer.mayBeShorter) ctsReceived_.erase(transfer.id);
    startEagerCopy(transfer);
    return context_.completions.add(transfer, {});
  }
  const auto cts = ctsReceived_.find(transfer.id);
  const bool isEagerZeroCopy = isEager && total >= wire::kZeroCopyBytes;
  if (cts == ctsReceived_.end() && isEagerZeroCopy && credits_.acquire(total)) {
    zeroCopies_.push_back(&add(transfer.id, transfer.bytes));
    zeroCopies_.back()->kind = wire::FrameKind::kEager;
    zeroCopies_.back()->transfer = &transfer;
    return;
  }
  if (cts == ctsReceived_.end()) {
    Outgoing& message = add(transfer.id, transfer.bytes);
    message.transfer = &transfer;
    rtsSent_.emplace(transfer.id, &message);
    return queueControl(wire::FrameKind::kRts, transfer.id, total);
  }
  const Cts expected = cts->second;
  ctsReceived_.erase(cts);
  if (!expected.fits(total)) {
    queueControl(wire::FrameKind::kRts, transfer.id, total);  // so that the peer's receive fails, too
    return context_.completions.add(
        transfer, wrongLength(context_.peerName(), expected.total, context_.selfName(), total, transfer.id));
  }
  zeroCopies_.push_back(&add(transfer.id, transfer.bytes));
  zeroCopies_.back()->transfer = &transfer;
}

void SendQueue::startEagerCopy(const Transfer& transfer) {
  const uint64_t total = transfer.bytes.size();
  const transport::Transport::Capabilities& can = context_.transport.capabilities(context_.peer);
  if (can.copiesSmall && total <= can.segmentBytes && !isWaiting() && context_.transport.canSend(context_.peer)) {
    transport::OutgoingFrame frame = frameOf(wire::FrameKind::kEager, transfer.id, total);
    frame.header.length = static_cast<uint32_t>(total);
    frame.payload = transfer.bytes;
    return context_.transport.send(context_.peer, frame);
  }
  Outgoing& message = add(transfer.id, {});
  message.kind = wire::FrameKind::kEager;
  message.copy.assign(transfer.bytes.begin(), transfer.bytes.end());
  message.bytes = message.copy;
  eagerCopies_.push_back(&message);
}

void SendQueue::pump() {
  int numSent = 0;
  for (; !isEmpty() && context_.transport.canSend(context_.peer); ++numSent) {
    control_.empty() ? sendFrame(eagerCopies_.empty() ? zeroCopies_ : eagerCopies_) : sendControl();
  }
  // If only one frame was sent and none waits behind it, this frame was sent without mayWait and needs no flush.
  if (numSent > 1 || !isEmpty()) context_.transport.flush(context_.peer);
}

void SendQueue::sendControl() {
  const Control control = control_.front();
  control_.pop_front();
  transport::OutgoingFrame frame = frameOf(control.kind, control.id, control.total);
  frame.header.offset = control.offset;
  frame.mayWait = !isEmpty();
  context_.transport.send(context_.peer, frame);
}

void SendQueue::sendFrame(Outgoings& queue) {
  Outgoing& message = *queue.front();
  const uint64_t total = message.bytes.size();
  transport::OutgoingFrame frame = frameOf(message.kind, message.id, total);
  frame.header.offset = message.numSent;
  frame.header.length = static_cast<uint32_t>(nextFrameBytes(queue));
  frame.payload = message.bytes.subspan(message.numSent, frame.header.length);
  frame.token = tokenOf(message);
  message.numSent += frame.header.length;
  ++message.numUnacknowledged;
  if (message.numSent == total) {
    message.isWhollySent = true;
    queue.pop_front();
  }
  frame.mayWait = !isEmpty();
  // Call send() last. The peer may be lost within the call, which destroys `message`.
  context_.transport.send(context_.peer, frame);
}

void SendQueue::acknowledged(uint64_t token) {
  if (token == 0) return;
  auto* message = reinterpret_cast<Outgoing*>(static_cast<uintptr_t>(token));
  --message->numUnacknowledged;
  if (!message->isWhollySent || message->numUnacknowledged > 0) return;
  if (message->transfer != nullptr) context_.completions.add(*message->transfer, {});
  messages_.erase(message->self);
}

void SendQueue::receivedCts(const wire::MessageId& id, uint64_t total, bool isUpTo) {
  const Cts cts = {total, isUpTo};
  const auto found = rtsSent_.find(id);
  if (found == rtsSent_.end()) {
    // If the message was sent eagerly before this CTS arrived, it needs no CTS.
    const auto started = isUpTo ? started_.find(seriesOf(id)) : started_.end();
    const bool isStarted = started != started_.end() && id.sequence < started->second;
    if (!isStarted && !context_.dropped.contains(id.communicator)) ctsReceived_[id] = cts;
    return;
  }
  Outgoing& message = *found->second;
  rtsSent_.erase(found);
  if (cts.fits(message.bytes.size())) return zeroCopies_.push_back(&message);
  // The peer's receive fails with the same error when the RTS arrives there.
  context_.completions.add(*message.transfer,
                           wrongLength(context_.peerName(), total, context_.selfName(), message.bytes.size(), id));
  messages_.erase(message.self);
}

void SendQueue::cancelSend(const Outgoing& message) {
  context_.transport.cancelSend(context_.peer, tokenOf(message), message.bytes);
}

bool SendQueue::cancel(Transfer& transfer) {
  const auto found = std::find_if(messages_.begin(), messages_.end(),
                                  [&](const Outgoing& message) { return message.transfer == &transfer; });
  if (found == messages_.end()) return false;
  cancelSend(*found);
  if (const auto rts = rtsSent_.find(found->id); rts != rtsSent_.end() && rts->second == &*found) {
    rtsSent_.erase(rts);
  }
  std::erase(zeroCopies_, &*found);
  if (found->kind == wire::FrameKind::kEager) {
    found->numSent == 0 ? credits_.release(found->bytes.size()) : credits_.releasePartial(found->bytes.size());
  }
  found->transfer = nullptr;
  found->isWhollySent = true;
  if (found->numUnacknowledged == 0) messages_.erase(found);
  return true;
}

void SendQueue::dropCommunicator(uint32_t communicator) {
  const auto isDropped = [&](const auto& entry) { return entry.first.communicator == communicator; };
  std::erase_if(ctsReceived_, isDropped);
  std::erase_if(started_, isDropped);
}

const Transfer* SendQueue::awaited() const {
  const auto found = std::find_if(messages_.begin(), messages_.end(), [](const Outgoing& message) {
    return message.transfer != nullptr && !message.transfer->isBackground;
  });
  return found == messages_.end() ? nullptr : found->transfer;
}

uint64_t SendQueue::numBytesMoved(const Transfer& transfer) const {
  const auto found = std::find_if(messages_.begin(), messages_.end(),
                                  [&](const Outgoing& message) { return message.transfer == &transfer; });
  return found == messages_.end() ? 0 : found->numSent;
}

void SendQueue::fail(const Status& status) {
  const std::string context = "sending to " + context_.peerName() + " failed after ";
  for (const Outgoing& message : messages_) {
    cancelSend(message);
    if (message.transfer == nullptr) continue;
    const std::string part = formatText("{} of {} bytes", message.numSent, message.bytes.size());
    context_.completions.add(*message.transfer, status.withContext(context + part));
  }
  messages_.clear();
  control_.clear();
  eagerCopies_.clear();
  zeroCopies_.clear();
  rtsSent_.clear();
  ctsReceived_.clear();
  started_.clear();
}

void SendQueue::detachCallers() {
  zeroCopies_.clear();
  rtsSent_.clear();
  for (Outgoing& message : messages_) {
    if (message.transfer == nullptr) continue;
    cancelSend(message);
    message.transfer = nullptr;
    message.isWhollySent = true;
  }
}

}  // namespace agspeed::comm::messaging
