// SPDX-License-Identifier: Apache-2.0
// Ring: a queue of records in shared memory with one writer and one reader, without locks. A record is
//
//   kind u32, length u32 | address u64, frame header (kFrame and kOffer) | `length` bytes
//
// A record begins at a multiple of 8 bytes and may wrap around to the ring's beginning. The reader passes a record when
// it does not need it any more, and the writer may then overwrite it. A position counts all bytes since the start, so
// its place in the ring is position % kBytes.
//
// A record of kind kOffer has the address of a payload that stays in the writer's memory. An offer ends in one of three
// ways. The reader takes it after it has read the payload (kTaken). The reader refuses it if it cannot read the payload
// (kRefused). Or the writer cancels it (kCancelled). The process that acts first changes the kind of the record in
// place, with a compare-and-swap.
//
// The reader does not trust the content of the ring. It checks lengths against the published bytes, and headers by
// decodeHeader. One process has the RingWriter, the other process has the RingReader. One thread at a time may use each
// of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

#include "comm/transport/shm/shared_memory.h"
#include "comm/transport/transport.h"
#include "comm/wire/frame_format.h"

namespace agspeed::comm::shm {

enum class RecordKind : uint32_t {
  kFrame = 1,  ///< a header and the first bytes of its payload
  kPart,       ///< further bytes of the payload of the last kFrame
  kCut,        ///< the payload of the last kFrame was cancelled, so its rest never follows
  kOffer,      ///< a header and the address of its payload in the writer's memory
  kTaken,      ///< an offer whose payload was read
  kCancelled,  ///< an offer whose payload must not be used any more
  kRefused,    ///< an offer whose payload could not be read
};

struct Ring {
  static constexpr size_t kBytes = 128 * 1024;

  alignas(64) std::atomic<uint64_t> written;  ///< bytes that the writer has published since the start
  alignas(64) std::atomic<uint64_t> read;     ///< bytes that the reader has passed since the start
  /// The writer must be woken when `read` reaches this position.
  alignas(64) std::atomic<uint64_t> wakeWriterAt;
  alignas(64) std::byte bytes[kBytes];
};

class RingWriter {
 public:
  static constexpr size_t kHeadBytes = 16 + wire::kHeaderBytes;  ///< kind, length, address and frame header of a record

  /// `memory`: sizeof(Ring) zeroed bytes.
  explicit RingWriter(SharedMemory memory);

  const SharedMemory& memory() const { return memory_; }
  SharedMemory& memory() { return memory_; }
  /// Returns how many bytes of the ring were free at the last call of readPosition(). The heads of records need a part
  /// of them.
  size_t room() const { return Ring::kBytes - static_cast<size_t>(written_ - read_); }
  /// Returns the position at which the next record will begin.
  uint64_t position() const { return written_; }
  /// Returns the position at which the last record begins.
  uint64_t lastPosition() const { return last_; }
  /// Loads the reader's current position, stores it for room(), and returns it.
  uint64_t readPosition() { return read_ = ring().read.load(); }
  /// Asks the reader to wake this writer when it has passed `position`.
  void wakeAt(uint64_t position) {
    if (std::exchange(wakeAt_, position) != position) ring().wakeWriterAt.store(position);
  }

  // Each of these four functions appends one record and publishes it. Requires: room for the record.
  void frame(const wire::FrameHeader& header, ByteView firstBytes);
  void part(ByteView bytes) { append(RecordKind::kPart, nullptr, 0, bytes); }
  void cut() { append(RecordKind::kCut, nullptr, 0, {}); }
  void offer(const wire::FrameHeader& header, ByteView payload);

  // Both functions require a record at `position` that has not been overwritten.
  RecordKind kindAt(uint64_t position) const { return kind(position).load(); }
  /// Cancels the offer at `position`. Has no effect if the reader has already taken or refused it.
  void cancelSend(uint64_t position);

 private:
  Ring& ring() const { return *reinterpret_cast<Ring*>(memory_.data()); }
  std::atomic<RecordKind>& kind(uint64_t position) const;
  void append(RecordKind kind, const wire::FrameHeader* header, uint64_t address, ByteView bytes);
  uint64_t put(uint64_t position, ByteView bytes);

  SharedMemory memory_;
  uint64_t written_ = 0;
  uint64_t last_ = 0;
  uint64_t read_ = 0;
  uint64_t wakeAt_ = 0;
};

struct Record {
  RecordKind kind{};
  wire::FrameHeader header;  ///< header of the frame; only in kFrame and kOffer
  uint64_t address = 0;      ///< address of the payload; only in kOffer
  uint32_t length = 0;       ///< payload bytes in the ring
};

class RingReader {
 public:
  explicit RingReader(SharedMemory memory) : memory_(std::move(memory)) {}

  bool isEmpty() const { return ring().written.load() == read_; }
  /// Returns the next record, which stays in the ring. Returns nullopt if the record is invalid, which an intact writer
  /// never writes. Requires: !isEmpty().
  std::optional<Record> peek() const;
  /// Copies the first payload bytes of the next record.
  void copy(const Record& record, std::span<std::byte> target) const;
  /// Ends the offer that is the next record: changes its kind to `as`, which is kTaken or kRefused. Returns false if
  /// the writer has cancelled the offer.
  bool end(RecordKind as) const;
  /// Passes the next record, so that the writer may overwrite it. Returns true if the writer must be woken.
  bool pass(const Record& record);

 private:
  Ring& ring() const { return *reinterpret_cast<Ring*>(memory_.data()); }
  void get(uint64_t position, std::span<std::byte> target) const;

  SharedMemory memory_;
  uint64_t read_ = 0;
};

}  // namespace agspeed::comm::shm
