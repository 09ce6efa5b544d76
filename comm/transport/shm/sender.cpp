// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/shm/sender.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace agspeed::comm::shm {
namespace {

/// Payloads of at least this size are offered. Shorter payloads are copied into the ring, because a copy is faster than
/// a system call that reads another process's memory.
constexpr size_t kMinOfferedBytes = 16 * 1024;

/// Whether the caller keeps the payload in place until it is acknowledged.
bool isLarge(const transport::OutgoingFrame& frame) {
  return frame.header.kind == wire::FrameKind::kData || frame.header.total >= wire::kZeroCopyBytes;
}

/// A long payload is written in parts of at most this size, so that writer and reader copy at the same time.
constexpr size_t kPartBytes = 32 * 1024;

}  // namespace

void Sender::send(const transport::OutgoingFrame& frame) {
  ++counters_.numFrames;
  counters_.numBytes += frame.payload.size();
  // A small message is never offered, because its caller may reuse the payload after send().
  if (mayOffer_ && isLarge(frame) && frame.payload.size() >= kMinOfferedBytes) {
    ring_.offer(frame.header, frame.payload);
    await(frame);
  } else {
    start(frame);
  }
  isFull_ = !canSend();
  ring();
}

void Sender::start(const transport::OutgoingFrame& frame) {
  const size_t room = ring_.room() - RingWriter::kHeadBytes;
  const bool isWhole = frame.payload.size() <= std::min(room, 2 * kPartBytes);
  const size_t numFirst = isWhole ? frame.payload.size() : std::min(room / 8 * 8, kPartBytes);
  ring_.frame(frame.header, frame.payload.first(numFirst));
  counters_.numCopiedBytes += numFirst;
  streamed_ = frame;
  numStreamed_ = numFirst;
  if (isWhole) return endCopy();
  stream();
  if (streamed_ && !isLarge(frame)) copyRemaining();
}

void Sender::copyRemaining() {
  const ByteView remaining = streamed_->payload.subspan(numStreamed_);
  remaining_.assign(remaining.begin(), remaining.end());
  streamed_->payload = remaining_;
  numStreamed_ = 0;
}

void Sender::endCopy() {
  streamed_->payload = {};
  await(*std::exchange(streamed_, std::nullopt));
}

void Sender::await(const transport::OutgoingFrame& frame) {
  if (frame.token != 0) awaited_.push_back({frame, ring_.lastPosition(), ring_.position()});
}

void Sender::stream() {
  constexpr size_t kHead = 8;
  while (streamed_) {
    const bool isCancelled = streamed_->payload.empty();
    const size_t left = isCancelled ? 0 : streamed_->payload.size() - numStreamed_;
    const size_t size = std::min(left, kPartBytes);
    if (ring_.room() < kHead + size + kHead) return;
    if (isCancelled) {
      ring_.cut();
    } else {
      ring_.part(streamed_->payload.subspan(numStreamed_, size));
      counters_.numCopiedBytes += size;
      numStreamed_ += size;
      if (size < left) continue;
    }
    endCopy();
  }
}

bool Sender::advance() {
  if (awaited_.empty() && !isFull_) return false;
  const size_t room = ring_.room();
  const uint64_t position = ring_.position();
  settle(ring_.readPosition());
  const bool hasRead = ring_.room() != room;
  stream();
  while (!streamed_ && !refused_.empty() && ring_.room() >= kMinRoom) {
    const transport::OutgoingFrame frame = refused_.front();
    refused_.pop_front();
    frame.payload.empty() ? sink_.acknowledged(peer_, frame.token) : start(frame);
  }
  const bool hasWritten = ring_.position() != position;
  if (hasWritten) ring();
  if (std::exchange(isFull_, !canSend()) && !isFull_) sink_.writable(peer_);
  return hasRead || hasWritten;
}

void Sender::settle(uint64_t read) {
  while (!awaited_.empty() && awaited_.front().end <= read) {
    const Awaited awaited = std::move(awaited_.front());
    awaited_.pop_front();
    if (ring_.kindAt(awaited.position) != RecordKind::kRefused) {
      sink_.acknowledged(peer_, awaited.frame.token);
      continue;
    }
    mayOffer_ = false;
    ++counters_.numRefusals;
    refused_.push_back(awaited.frame);
  }
}

void Sender::cancelSend(uint64_t token) {
  for (Awaited& awaited : awaited_) {
    if (awaited.frame.token != token || awaited.frame.payload.empty()) continue;
    ring_.cancelSend(awaited.position);
    awaited.frame.payload = {};
  }
  for (transport::OutgoingFrame& frame : refused_) {
    if (frame.token == token) frame.payload = {};
  }
  if (streamed_ && streamed_->token == token) streamed_->payload = {};
}

bool Sender::isFlushed() const {
  return !streamed_ && refused_.empty() &&
         std::all_of(awaited_.begin(), awaited_.end(), [](const Awaited& sent) { return sent.frame.payload.empty(); });
}

void Sender::askToBeWoken() {
  uint64_t position = std::numeric_limits<uint64_t>::max();
  if (isFull_) position = ring_.position() - std::min<uint64_t>(ring_.position(), Ring::kBytes / 2);
  // Ask for a wake-up at the last frame of a large message, not after every frame. Only the last frame completes a
  // transfer of this rank.
  const auto last = std::find_if(awaited_.begin(), awaited_.end(), [](const Awaited& sent) {
    const wire::FrameHeader& header = sent.frame.header;
    return isLarge(sent.frame) && header.offset + header.length == header.total;
  });
  if (last != awaited_.end()) position = std::min(position, last->end);
  ring_.wakeAt(position);
}

void Sender::ring() {
  if (bell_.ring()) ++counters_.numRings;
}

}  // namespace agspeed::comm::shm
