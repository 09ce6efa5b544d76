// SPDX-License-Identifier: Apache-2.0
#include "comm/channel/control_line.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <utility>

namespace agspeed::comm::channel {
namespace {

constexpr size_t kLengthBytes = sizeof(uint32_t);

uint32_t lengthAt(ByteView bytes) {
  uint32_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  return length;
}

}  // namespace

ControlLine::ControlLine(io::Poller& poller, tcp::Socket socket, size_t maxBytes, Owner& owner)
    : poller_(poller),
      socket_(std::move(socket)),
      maxBytes_(maxBytes),
      owner_(owner),
      id_(poller.add(socket_.descriptor(), EPOLLIN, *this)) {
  const int one = 1;
  (void)setsockopt(socket_.descriptor(), SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
}

ControlLine::~ControlLine() {
  if (isOpen_) poller_.remove(id_, socket_.descriptor());
}

void ControlLine::end() {
  if (!std::exchange(isOpen_, false)) return;
  poller_.remove(id_, socket_.descriptor());
}

void ControlLine::send(ByteView record) {
  if (!isOpen_) return;
  auto length = static_cast<uint32_t>(record.size());
  const std::array<iovec, 2> parts = {iovec{&length, sizeof(length)},
                                      iovec{const_cast<std::byte*>(record.data()), record.size()}};
  if (socket_.write(parts).numBytes != kLengthBytes + record.size()) end();
}

void ControlLine::finish() const { (void)shutdown(socket_.descriptor(), SHUT_WR); }

ByteView ControlLine::begun() const {
  return received_.size() <= kLengthBytes ? ByteView() : ByteView(received_).subspan(kLengthBytes);
}

std::optional<std::vector<std::byte>> ControlLine::receive() {
  if (received_.size() < kLengthBytes) return std::nullopt;
  const size_t whole = kLengthBytes + lengthAt(received_);
  if (received_.size() < whole) return std::nullopt;
  const auto end = received_.begin() + static_cast<ptrdiff_t>(whole);
  std::vector<std::byte> record(received_.begin() + kLengthBytes, end);
  received_.erase(received_.begin(), end);
  return record;
}

void ControlLine::ready(uint32_t) {
  std::array<std::byte, 2048> part;
  const iovec target = {part.data(), part.size()};
  const tcp::Moved moved = socket_.read(std::span(&target, 1));
  received_.insert(received_.end(), part.begin(), part.begin() + static_cast<ptrdiff_t>(moved.numBytes));
  const bool isTooLong = received_.size() >= kLengthBytes && lengthAt(received_) > maxBytes_;
  if (!moved.isOpen || isTooLong) end();
  owner_.lineChanged();
}

}  // namespace agspeed::comm::channel
