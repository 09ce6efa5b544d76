// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/shm/receiver.h"

#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/log.h"

namespace agspeed::comm::shm {
namespace {

/// read() returns after it has read this many bytes. Each record counts as its payload bytes plus kRecordCost.
constexpr size_t kBytesAtOnce = 512 * 1024;
constexpr size_t kRecordCost = 4096;

}  // namespace

Receiver::Receiver(SharedMemory memory, int peer, const Process& process, io::FileDescriptor alive,
                   transport::Transport::Sink& sink, Doorbell& bell, ShmCounters& counters)
    : ring_(std::move(memory)),
      peer_(peer),
      process_(process),
      alive_(std::move(alive)),
      sink_(sink),
      bell_(bell),
      counters_(counters) {}

Receiver::Outcome Receiver::read() {
  Outcome outcome = Outcome::kNothing;
  for (size_t numBytes = 0; numBytes < kBytesAtOnce && !ring_.isEmpty();) {
    outcome = Outcome::kSomething;
    const std::optional<Record> record = ring_.peek();
    if (!record) return Outcome::kBroken;
    numBytes += kRecordCost + (record->kind == RecordKind::kOffer ? record->header.length : record->length);
    if (!take(*record)) return Outcome::kBroken;
  }
  return outcome;
}

bool Receiver::take(const Record& record) {
  switch (record.kind) {
    case RecordKind::kFrame: {
      if (partial_) return false;
      partial_ = Partial{record.header, {}, 0};
      if (record.header.length > 0) partial_->target = sink_.place(peer_, record.header);
      return takePart(record);
    }
    case RecordKind::kPart: return partial_ && takePart(record);
    case RecordKind::kCut:
      if (!partial_) return false;
      partial_.reset();
      pass(record);
      return true;
    case RecordKind::kOffer:
      if (partial_) return false;
      takeOffer(record);
      return true;
    case RecordKind::kCancelled: pass(record); return true;
    case RecordKind::kTaken:
    case RecordKind::kRefused: return false;
  }
  return false;
}

bool Receiver::takePart(const Record& record) {
  if (record.length > partial_->header.length - partial_->numReceived) return false;
  if (!partial_->target.empty()) {
    ring_.copy(record, partial_->target.subspan(partial_->numReceived, record.length));
  }
  partial_->numReceived += record.length;
  pass(record);
  if (partial_->numReceived < partial_->header.length) return true;
  const wire::FrameHeader header = partial_->header;
  partial_.reset();
  sink_.arrived(peer_, header);
  return true;
}

void Receiver::takeOffer(const Record& record) {
  const std::span<std::byte> target = sink_.place(peer_, record.header);
  const bool canRead = target.empty() || readFromPeer(record.address, target);
  const bool isStillOffered = ring_.end(canRead ? RecordKind::kTaken : RecordKind::kRefused);
  pass(record);
  // Do not report the frame if the writer has cancelled the offer, because the bytes may have changed during the read.
  if (!isStillOffered || !canRead) return;
  counters_.numReadBytes += target.size();
  sink_.arrived(peer_, record.header);
}

bool Receiver::readFromPeer(uint64_t address, std::span<std::byte> target) {
  if (!alive_.isOpen()) return cannotRead("its process cannot be watched");
  for (size_t done = 0; done < target.size();) {
    const iovec local = {target.data() + done, target.size() - done};
    const iovec remote = {reinterpret_cast<void*>(static_cast<uintptr_t>(address + done)), local.iov_len};
    const ssize_t size = process_vm_readv(process_.pid, &local, 1, &remote, 1, 0);
    if (size <= 0) return cannotRead(std::strerror(errno));
    done += static_cast<size_t>(size);
  }
  // If the process has ended, its pid may have been reused, so the bytes may belong to another process.
  pollfd ended = {alive_.get(), POLLIN, 0};
  return poll(&ended, 1, 0) == 0;
}

bool Receiver::cannotRead(const std::string& why) {
  if (!std::exchange(hasRefused_, true)) {
    AG_LOG(kInfo, "this process cannot read the memory of rank {} ({}): large messages from this rank are copied twice",
           peer_, why);
  }
  return false;
}

void Receiver::pass(const Record& record) {
  if (ring_.pass(record) && bell_.ring()) ++counters_.numRings;
}

void Receiver::cancelReceive(ByteView bytes) {
  if (partial_ && transport::overlaps(partial_->target, bytes)) partial_->target = {};
}

}  // namespace agspeed::comm::shm
