// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/tcp/receiver.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace agspeed::comm::tcp {

Receiver::Receiver(io::Poller& poller, Socket socket, security::Opener opener, transport::Transport::Sink& sink,
                   int peer, Owner& owner)
    : poller_(poller),
      socket_(std::move(socket)),
      opener_(std::move(opener)),
      sink_(sink),
      peer_(peer),
      owner_(owner),
      pollId_(poller.add(socket_.descriptor(), EPOLLIN, *this)) {}

Receiver::~Receiver() {
  if (isOpen_) poller_.remove(pollId_, socket_.descriptor());
}

void Receiver::close(transport::LossCause cause) {
  isOpen_ = false;
  poller_.remove(pollId_, socket_.descriptor());
  socket_.reset();
  owner_.receiverLost(peer_, cause);
}

void Receiver::ready(uint32_t) {
  for (size_t numRead = 0; numRead < kMaxReadBytes;) {
    size_t numAsked = 0;
    const Moved moved = readOnce(numAsked);
    if (!moved.isOpen) return close(transport::LossCause::kClosed);
    if (!consume()) return close(transport::LossCause::kCorrupted);
    if (!isOpen_) return;
    if (moved.numBytes < numAsked) break;
    numRead += moved.numBytes;
  }
  awaitRemaining();
}

void Receiver::awaitRemaining() {
  const size_t left = isInPayload_ ? header_.length - placed_ : 0;
  const size_t wanted = left < kMinAwaited ? 1 : std::min(left, kMaxAwaited);
  if (std::exchange(awaited_, wanted) != wanted) socket_.setReceiveLowat(static_cast<int>(wanted));
}

Moved Receiver::readOnce(size_t& numAsked) {
  std::array<iovec, 2> parts;
  size_t numParts = 0;
  const size_t wanted = isInPayload_ ? header_.length - placed_ : 0;
  if (wanted > 0) parts[numParts++] = {target_.data() + placed_, wanted};
  const size_t room = std::min(staging_.size() - end_, wanted > 0 ? kFollowingBytes : kStagingBytes);
  parts[numParts++] = {staging_.data() + end_, room};
  numAsked = wanted + room;
  const Moved moved = socket_.read(std::span(parts).first(numParts));
  const size_t numPlaced = std::min(moved.numBytes, wanted);
  placed_ += numPlaced;
  end_ += moved.numBytes - numPlaced;
  return moved;
}

bool Receiver::consume() {
  const size_t tagSize = tagBytes(opener_.protection());
  while (isOpen_) {
    const size_t needed = isInPayload_ ? tagSize + (header_.length - placed_) : wire::kHeaderBytes + tagSize;
    if (end_ - begin_ < needed) break;
    if (isInPayload_ ? !consumePayload() : !consumeHeader()) return false;
  }
  if (isInPayload_ && !isPayloadWhole()) {
    const size_t numBytes = std::min<size_t>(end_ - begin_, header_.length - placed_);
    std::copy_n(staging_.begin() + static_cast<ptrdiff_t>(begin_), numBytes,
                target_.begin() + static_cast<ptrdiff_t>(placed_));
    placed_ += numBytes;
    begin_ += numBytes;
  }
  std::memmove(staging_.data(), staging_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  return true;
}

bool Receiver::consumeHeader() {
  const size_t tagSize = tagBytes(opener_.protection());
  const std::span<const std::byte, wire::kHeaderBytes> bytes(staging_.data() + begin_, wire::kHeaderBytes);
  if (!opener_.verify(bytes, ByteView(staging_).subspan(begin_ + wire::kHeaderBytes, tagSize))) return false;
  const std::optional<wire::FrameHeader> header = wire::decodeHeader(bytes);
  if (!header) return false;
  begin_ += wire::kHeaderBytes + tagSize;
  header_ = *header;
  if (header_.length == 0) {
    sink_.arrived(peer_, header_);
    return true;
  }
  isInPayload_ = true;
  placed_ = 0;
  target_ = sink_.place(peer_, header_);
  if (target_.size() != header_.length) {
    discarded_.resize(header_.length);
    target_ = discarded_;
  }
  return true;
}

bool Receiver::consumePayload() {
  const size_t tagSize = tagBytes(opener_.protection());
  const size_t left = header_.length - placed_;
  std::copy_n(staging_.begin() + static_cast<ptrdiff_t>(begin_), left,
              target_.begin() + static_cast<ptrdiff_t>(placed_));
  begin_ += left;
  const ByteView tag = ByteView(staging_).subspan(begin_, tagSize);
  const bool isIntact = opener_.protection() == security::Protection::kEncrypted ? opener_.decrypt(target_, tag)
                                                                                 : opener_.verify(target_, tag);
  if (!isIntact) return false;
  begin_ += tagSize;
  isInPayload_ = false;
  sink_.arrived(peer_, header_);
  return true;
}

void Receiver::cancelReceive(ByteView bytes) {
  if (!isInPayload_ || target_.data() == discarded_.data() || !transport::overlaps(target_, bytes)) return;
  discarded_.resize(header_.length);
  std::copy_n(target_.begin(), placed_, discarded_.begin());
  target_ = discarded_;
}

}  // namespace agspeed::comm::tcp
