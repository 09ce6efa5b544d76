// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/shm/ring.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>

#include "comm/wire/byte_io.h"
#include "runtime/base/check.h"

namespace agspeed::comm::shm {
namespace {

constexpr size_t kKindBytes = 8;  ///< bytes of `kind` and `length` in a record
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<RecordKind>::is_always_lock_free &&
                  sizeof(std::atomic<RecordKind>) == 4,
              "processes share nothing but memory");
static_assert((Ring::kBytes & (Ring::kBytes - 1)) == 0 && RingWriter::kHeadBytes % 8 == 0);

bool hasHeader(RecordKind kind) { return kind != RecordKind::kPart && kind != RecordKind::kCut; }

uint64_t sizeOf(RecordKind kind, uint64_t length) {
  return (hasHeader(kind) ? RingWriter::kHeadBytes : kKindBytes) + (length + 7) / 8 * 8;
}

size_t indexOf(uint64_t position) { return position & (Ring::kBytes - 1); }

std::atomic<RecordKind>& kindIn(Ring& ring, uint64_t position) {
  return *reinterpret_cast<std::atomic<RecordKind>*>(ring.bytes + indexOf(position));
}

}  // namespace

RingWriter::RingWriter(SharedMemory memory) : memory_(std::move(memory)) {
  new (memory_.data()) Ring;
  wakeAt(std::numeric_limits<uint64_t>::max());
}

std::atomic<RecordKind>& RingWriter::kind(uint64_t position) const { return kindIn(ring(), position); }

uint64_t RingWriter::put(uint64_t position, ByteView bytes) {
  const size_t index = indexOf(position);
  const size_t atEnd = std::min(bytes.size(), Ring::kBytes - index);
  std::copy_n(bytes.begin(), atEnd, ring().bytes + index);
  std::copy(bytes.begin() + static_cast<ptrdiff_t>(atEnd), bytes.end(), ring().bytes);
  return position + bytes.size();
}

void RingWriter::append(RecordKind recordKind, const wire::FrameHeader* header, uint64_t address, ByteView bytes) {
  const uint64_t size = sizeOf(recordKind, bytes.size());
  AG_CHECK(size <= room(), "no room in the ring");
  std::array<std::byte, kHeadBytes> head;
  wire::ByteWriter writer(head);
  writer.put(recordKind).put(static_cast<uint32_t>(bytes.size()));
  if (header != nullptr) {
    writer.put(address);
    encodeHeader(*header, std::span(head).last<wire::kHeaderBytes>());
  }
  (void)put(put(written_, std::span(head).first(header != nullptr ? kHeadBytes : kKindBytes)), bytes);
  last_ = written_;
  written_ += size;
  ring().written.store(written_);
}

void RingWriter::frame(const wire::FrameHeader& header, ByteView firstBytes) {
  append(RecordKind::kFrame, &header, 0, firstBytes);
}

void RingWriter::offer(const wire::FrameHeader& header, ByteView payload) {
  append(RecordKind::kOffer, &header, reinterpret_cast<uintptr_t>(payload.data()), {});
}

void RingWriter::cancelSend(uint64_t position) {
  RecordKind expected = RecordKind::kOffer;
  kind(position).compare_exchange_strong(expected, RecordKind::kCancelled);
}

void RingReader::get(uint64_t position, std::span<std::byte> target) const {
  const size_t index = indexOf(position);
  const size_t atEnd = std::min(target.size(), Ring::kBytes - index);
  std::copy_n(ring().bytes + index, atEnd, target.begin());
  std::copy_n(ring().bytes, target.size() - atEnd, target.begin() + static_cast<ptrdiff_t>(atEnd));
}

std::optional<Record> RingReader::peek() const {
  const uint64_t available = ring().written.load() - read_;
  if (available < kKindBytes || available > Ring::kBytes) return std::nullopt;
  Record record;
  record.kind = kindIn(ring(), read_).load();
  get(read_ + sizeof(record.kind), std::as_writable_bytes(std::span(&record.length, 1)));
  if (record.kind < RecordKind::kFrame || record.kind > RecordKind::kRefused) return std::nullopt;
  if (sizeOf(record.kind, record.length) > available) return std::nullopt;
  if (!hasHeader(record.kind)) return record;
  std::array<std::byte, wire::kHeaderBytes> bytes;
  get(read_ + kKindBytes, std::as_writable_bytes(std::span(&record.address, 1)));
  get(read_ + kKindBytes + sizeof(record.address), bytes);
  const std::optional<wire::FrameHeader> header = wire::decodeHeader(bytes);
  if (!header || record.length > header->length) return std::nullopt;
  record.header = *header;
  return record;
}

void RingReader::copy(const Record& record, std::span<std::byte> target) const {
  get(read_ + sizeOf(record.kind, 0), target);
}

bool RingReader::end(RecordKind as) const {
  RecordKind expected = RecordKind::kOffer;
  return kindIn(ring(), read_).compare_exchange_strong(expected, as);
}

bool RingReader::pass(const Record& record) {
  read_ += sizeOf(record.kind, record.length);
  ring().read.store(read_);
  return read_ >= ring().wakeWriterAt.load();
}

}  // namespace agspeed::comm::shm
